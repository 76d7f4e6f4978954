//! Cilium's version, as far as rules depend on it.

/// Major and minor, read from an image's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

/// From here on a peer's file may bring its own host aliases.
pub const HOST_ALIASES: Version = Version { major: 1, minor: 20 };
/// From here on namespaces may be kept from being global.
pub const GLOBAL_NAMESPACES: Version = Version { major: 1, minor: 20 };

impl Version {
    /// From `registry/cilium:v1.20.2@sha256:…`; nothing where the tag is no version.
    pub fn of_image(image: &str) -> Option<Version> {
        let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
        let (_, tag) = without_digest.rsplit_once(':')?;
        let mut parts = tag.strip_prefix('v').unwrap_or(tag).split(['.', '-', '+']);
        Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_tag() {
        let version = |image: &str| Version::of_image(image).map(|version| (version.major, version.minor));
        assert_eq!(version("registry.example/cilium:v1.20.2@sha256:abc"), Some((1, 20)));
        assert_eq!(version("host:5000/cilium:1.15.19"), Some((1, 15)));
        assert_eq!(version("cilium:v1.21.0-dev"), Some((1, 21)));
        for unknown in ["cilium", "host:5000/cilium", "cilium:latest", "cilium@sha256:abc", "cilium:v1"] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
    }
}
