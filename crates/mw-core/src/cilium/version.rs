//! Cilium's version, as far as rules depend on it.

use std::fmt;

/// Major and minor, read from an image's tag or the name of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version.
    pub major: u16,
    /// The minor version.
    pub minor: u16,
}

/// Last version in which agents use the admin certificate.
pub const ADMIN_CERTIFICATE: Version = Version {
    major: 1,
    minor: 15,
};
/// First version in which a peer's file can contain host aliases.
pub(super) const HOST_ALIASES: Version = Version {
    major: 1,
    minor: 20,
};
/// First version in which namespaces can be excluded from being global.
pub(super) const GLOBAL_NAMESPACES: Version = Version {
    major: 1,
    minor: 20,
};

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Parses `registry/cilium:v1.20.2@sha256:…`; `None` if the tag is not a
    /// version.
    pub fn of_image(image: &str) -> Option<Version> {
        let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
        Version::read(without_digest.rsplit_once(':')?.1)
    }

    /// Parses the label helm.sh/chart, `cilium-1.20.2`.
    pub fn of_chart(label: &str) -> Option<Version> {
        Version::read(label.strip_prefix("cilium-")?)
    }

    fn read(text: &str) -> Option<Version> {
        let mut parts = text
            .strip_prefix('v')
            .unwrap_or(text)
            .split(['.', '-', '+']);
        Some(Version {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
        })
    }

    /// The next minor release: Cilium is upgraded one minor release at a time.
    #[must_use]
    pub fn next_minor(self) -> Version {
        Version {
            minor: self.minor.saturating_add(1),
            ..self
        }
    }

    /// The number of minor releases between two versions; `None` if the major
    /// version differs.
    pub(super) fn minors_between(self, other: Version) -> Option<u16> {
        (self.major == other.major).then(|| self.minor.abs_diff(other.minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_tag() {
        let version =
            |image: &str| Version::of_image(image).map(|version| (version.major, version.minor));
        assert_eq!(
            version("registry.example/cilium:v1.20.2@sha256:abc"),
            Some((1, 20))
        );
        assert_eq!(version("host:5000/cilium:1.15.19"), Some((1, 15)));
        assert_eq!(version("cilium:v1.21.0-dev"), Some((1, 21)));
        let chart = |label: &str| Version::of_chart(label).map(|version| version.to_string());
        assert_eq!(chart("cilium-1.20.2").as_deref(), Some("1.20"));
        assert_eq!(
            (
                chart("cilium"),
                chart("hubble-1.20.2"),
                chart("cilium-next")
            ),
            (None, None, None)
        );
        for unknown in [
            "cilium",
            "host:5000/cilium",
            "cilium:latest",
            "cilium@sha256:abc",
            "cilium:v1",
        ] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
    }
}
