//! Writes all generated files of this crate, e.g. under `config/`; called by `make
//! generate`.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, content) in mw_api::crd::files()? {
        let path = root.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, content)?;
    }
    Ok(())
}
