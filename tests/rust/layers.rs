//! Arrows between the layers point down only, and an edge is used by nobody.

use std::fs;
use std::path::Path;

/// From the bottom to the top.
const LAYERS: [&str; 6] = ["values", "rules", "engine", "stores", "facades", "edges"];

#[test]
fn layers_use_only_what_is_below_them() {
    let mut looked_at = 0;
    for (height, layer) in LAYERS.iter().enumerate() {
        for (path, text) in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(layer)) {
            looked_at += 1;
            let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            let text = code.join("\n");
            for used in
                text.split("crate::").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap())
            {
                let allowed = LAYERS.iter().take(height + 1).any(|below| *below == used);
                assert!(allowed, "{path} is in the layer {layer} and uses crate::{used}");
            }
        }
    }
    assert!(looked_at > 30, "only {looked_at} files were found");
}

#[test]
fn neither_runtime_edge_uses_the_other() {
    let edges = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/edges");
    for (edge, other) in [("js", "worker"), ("worker", "js")] {
        for (path, text) in sources(&edges.join(edge)) {
            assert!(!text.contains(&format!("edges::{other}")), "{path} uses the edge {other}");
        }
    }
}

#[test]
fn the_core_has_no_target_of_its_own() {
    for layer in LAYERS.iter().take(5) {
        for (path, text) in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(layer)) {
            assert!(!text.contains("target_arch"), "{path} depends on the target");
        }
    }
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}
