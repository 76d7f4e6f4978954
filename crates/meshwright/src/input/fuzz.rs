//! Fuzz tests of the input: any file must be read or reported without a panic, and readable objects
//! must be planned.

use std::path::{Path, PathBuf};

use mw_core::kilo::Departures;
use mw_core::kilo::planner::{ClusterSeen, World};
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use proptest::prelude::*;

use crate::input::kilo::{dumps, meshes};
use crate::input::source::{Contents, Reader};
use crate::input::{finding, object};

/// A temporary file that is deleted on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("meshwright-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

/// Reads both kinds of files and plans the readable objects.
fn read_and_plan(test: &str, mesh: &[u8], dump: &[u8]) {
    let (mesh, dump) = (
        Scratch::new(&format!("{test}-mesh"), mesh),
        Scratch::new(&format!("{test}-dump"), dump),
    );
    let mut reader = Reader::default();
    let mut findings = Vec::new();
    let opened = object::open_all(
        std::slice::from_ref(&mesh.0),
        Contents::Plain,
        &mut reader,
        &mut findings,
    );
    let declared = meshes::load(opened, &mut findings);
    let seen = dumps::load(
        &[("berlin".to_owned(), dump.0.clone())],
        &mut reader,
        &mut findings,
    );
    let text = finding::render(findings);
    assert!(
        !text.chars().any(|c| c.is_control() && c != '\n'),
        "{text:?}"
    );
    let clusters = seen.into_iter().map(|(name, dump)| {
        let seen = ClusterSeen {
            nodes: Seen::Known(dump.nodes),
            peers: Seen::Known(dump.peers),
            departures: Departures::AnyMissing,
        };
        (ClusterId::from(name.as_str()), seen)
    });
    let meshes = declared
        .into_iter()
        .map(|(id, declared)| (id, declared.mesh))
        .collect();
    mw_core::kilo::plan(World {
        meshes,
        clusters: clusters.collect(),
        ..World::default()
    });
}

fn example(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples/three-clusters")
            .join(name),
    )
    .unwrap()
}

/// An example file with some bytes replaced.
fn damaged(name: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "[",
            "{",
            ": ",
            "- ",
            "\n",
            "&a ",
            "*a",
            "!!",
            "\"",
            "'",
            "|",
            "? ",
            "null",
            "~",
            "99999999999999999999",
            "-1",
            "\u{feff}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), 0..6usize, bytes), 0..4).prop_map(
        move |edits| {
            let mut text = example(name);
            for (at, gone, put) in edits {
                let at = at.index(text.len());
                let end = (at + gone).min(text.len());
                text.splice(at..end, put);
            }
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_read_as_far_as_they_go(mesh in damaged("mesh.yaml"), dump in damaged("berlin.yaml")) {
        read_and_plan("damaged", &mesh, &dump);
    }

    #[test]
    fn any_bytes_are_read(mesh in prop::collection::vec(any::<u8>(), 0..200), dump in "[-\\[\\]{}:,&*!|>'\"%@`# \na-c0-9~]{0,200}") {
        read_and_plan("bytes", &mesh, dump.as_bytes());
    }
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![below; 10].join(",")
        ));
    }
    let file = Scratch::new("bomb", bomb.as_bytes());
    let wrong = Reader::default()
        .read(&file.0, Contents::Plain)
        .unwrap_err();
    assert!(finding::render(vec![wrong]).contains("expands beyond the limit"));
}

#[test]
fn a_deep_nest_is_refused() {
    let file = Scratch::new("nest", "[".repeat(200_000).as_bytes());
    assert!(Reader::default().read(&file.0, Contents::Plain).is_err());
}
