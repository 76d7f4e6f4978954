//! Searches output for secrets.

use base64ct::{Base64, Encoding};
use serde_json::Value;

use crate::rights::documents;

/// This many characters identify a long secret.
const PIECE: usize = 40;

#[derive(Debug, Default)]
pub(crate) struct Leaks {
    /// Pieces to search for, with the name of the secret.
    pieces: Vec<(String, String)>,
    found: Vec<String>,
}

impl Leaks {
    /// Records a text that must not be shown, neither raw nor in base64.
    pub(crate) fn note(&mut self, what: &str, text: &str) {
        // The first and last lines of a key are not secret.
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.len() > 8 && !line.contains("-----"))
            .collect();
        let encoded = Base64::encode_string(text.as_bytes());
        for whole in lines.into_iter().chain([encoded.as_str()]) {
            let start = whole.len().saturating_sub(PIECE) / 2;
            let piece = whole
                .get(start..(start + PIECE).min(whole.len()))
                .unwrap_or(whole);
            if !self.pieces.iter().any(|(known, _)| known == piece) {
                self.pieces.push((piece.to_owned(), what.to_owned()));
            }
        }
    }

    /// Records all confidential values of a Secret.
    pub(crate) fn note_secret(&mut self, cluster: &str, secret: &Value) {
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let bytes = Base64::decode_vec(value.as_str().unwrap()).unwrap();
            let text = String::from_utf8(bytes).unwrap();
            let what = format!("{key} of {} in {cluster}", secret["metadata"]["name"]);
            match key.as_str() {
                "token" => self.note(&what, &text),
                "kubeconfig" => self.note(
                    &what,
                    documents(&text)[0]["users"][0]["user"]["token"]
                        .as_str()
                        .unwrap(),
                ),
                key if key.ends_with(".key") => self.note(&what, &text),
                _ => {}
            }
        }
    }

    pub(crate) fn search(&mut self, place: &str, text: &str) {
        for (piece, what) in &self.pieces {
            if text.contains(piece.as_str()) {
                self.found.push(format!("{place} shows {what}"));
            }
        }
        if text.contains("PRIVATE KEY")
            || text.contains(Base64::encode_string(b"-----BEGIN PRIVATE").as_str())
        {
            self.found.push(format!("{place} shows a private key"));
        }
    }

    pub(crate) fn assert_none(&self) {
        assert!(
            self.pieces.len() > 20,
            "nothing was noted: {:?}",
            self.pieces.len()
        );
        assert!(self.found.is_empty(), "{:#?}", self.found);
    }
}
