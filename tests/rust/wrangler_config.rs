//! The configurations in the repository are ones the gate takes.

use tollgate::Config;

fn config_of(text: &str) -> Config {
    let toml: toml::Table = text.parse().unwrap_or_else(|error| panic!("{text}\n{error}"));
    let json = serde_json::to_string(&toml["vars"]["TOLLGATE_CONFIG"]).unwrap();
    Config::parse(&json).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

#[test]
fn the_policies_of_wrangler_toml_are_valid() {
    assert!(!config_of(include_str!("../../wrangler.toml")).policies.is_empty());
}

#[test]
fn the_examples_in_the_documentation_are_valid() {
    let pages = [
        include_str!("../../README.md"),
        include_str!("../../docs/policies.md"),
        include_str!("../../docs/counters.md"),
    ];
    let blocks: Vec<_> = pages.iter().flat_map(|page| page.split("```toml\n").skip(1)).collect();
    let examples =
        blocks.iter().filter_map(|block| block.split("```").next()).filter(|text| text.contains("TOLLGATE_CONFIG"));
    let policies: Vec<_> = examples.map(|text| config_of(text).policies.len()).collect();
    assert!(policies.iter().sum::<usize>() >= 5 && policies.len() >= 3, "{policies:?}");
}
