//! docs/cli.md, generated from the command line, is up to date.

use crate::common::meshwright;
use crate::page::root;

#[test]
fn the_page_about_the_command_line_is_up_to_date() {
    let stored = std::fs::read_to_string(root().join("docs/cli.md")).unwrap_or_default();
    let generated = meshwright(&root(), &["man", "--markdown"], "");
    assert_eq!((generated.code, generated.stderr.as_str()), (0, ""));
    assert!(
        stored == generated.stdout,
        "docs/cli.md is not what the program says: run `make generate` and commit the result"
    );
}
