//! Checks the Containerfile without a container engine.

use serde_json::json;

use crate::render::root;
use crate::rendering::Rendering;
use crate::trials::scenarios;

scenarios![
    the_image_is_built_as_make_builds_and_holds_nothing_else,
    the_image_and_the_chart_agree_on_the_user
];

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// Instructions of each stage.
fn stages() -> Vec<Vec<(String, String)>> {
    let file = read("Containerfile");
    let mut stages: Vec<Vec<(String, String)>> = Vec::new();
    for line in file
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (word, rest) = line.split_once(' ').unwrap();
        if word == "FROM" {
            stages.push(Vec::new());
        }
        stages
            .last_mut()
            .unwrap()
            .push((word.to_owned(), rest.to_owned()));
    }
    stages
}

fn all<'a>(stage: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    stage
        .iter()
        .filter(|(found, _)| found == word)
        .map(|(_, rest)| rest.as_str())
        .collect()
}

async fn the_image_is_built_as_make_builds_and_holds_nothing_else() {
    let stages = stages();
    let [build, image] = &stages[..] else {
        panic!("{stages:?}")
    };
    let needed = read("Cargo.toml")
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    assert!(
        all(build, "FROM")[0].contains(&format!("/rust:{needed}-")),
        "{build:?}"
    );
    assert_eq!(*all(build, "RUN").last().unwrap(), "make build");
    assert_eq!(all(build, "ENV"), ["CARGO_TARGET_DIR=/target"]);
    let makefile = read("Makefile");
    let recipe = makefile
        .split("\nbuild:")
        .nth(1)
        .and_then(|rest| rest.lines().nth(1))
        .unwrap();
    assert!(
        recipe.starts_with(
            "\tcargo rustc --locked --release --package meshwright --bin meshwright -- "
        ),
        "{recipe}"
    );

    assert_eq!(all(image, "FROM"), ["scratch"]);
    let copied: Vec<&str> = all(image, "COPY")
        .into_iter()
        .map(|line| line.strip_prefix("--from=build ").unwrap())
        .collect();
    let certificates = "/etc/ssl/certs/ca-certificates.crt";
    assert_eq!(
        copied,
        [
            format!("{certificates} {certificates}").as_str(),
            "/target/release/meshwright /meshwright"
        ]
    );
    assert_eq!(all(image, "ENTRYPOINT"), ["[\"/meshwright\"]"]);
    for folder in ["target", ".git"] {
        assert!(
            read(".dockerignore").lines().any(|line| line == folder),
            "{folder} would be sent to the engine"
        );
    }
}

async fn the_image_and_the_chart_agree_on_the_user() {
    let rendering = Rendering::of(&json!({}));
    let context = &rendering.pod("operator")["securityContext"];
    let user = format!("{}:{}", context["runAsUser"], context["runAsGroup"]);
    assert_eq!(all(stages().last().unwrap(), "USER"), [user.as_str()]);
    // The chart relies on the image's entrypoint.
    assert!(rendering.container("operator")["command"].is_null());
}
