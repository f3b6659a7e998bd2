//! The configuration in the repository is one the gate takes.

use tollgate::Config;

#[test]
fn the_policies_of_wrangler_toml_are_valid() {
    let text = include_str!("../../wrangler.toml");
    let toml: toml::Table = text.parse().unwrap();
    let json = serde_json::to_string(&toml["vars"]["TOLLGATE_CONFIG"]).unwrap();
    let config = Config::parse(&json).unwrap();
    assert!(!config.policies.is_empty());
}
