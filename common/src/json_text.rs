//! Measures a JSON text before it is parsed. A parsed value can take hundreds of times the memory of
//! its text.

/// The maximum number of values in the body of a request. A body of real texts and settings has a
/// small part of it.
const MOST_VALUES: usize = 100_000;

/// The shape of a JSON text. Of a text that is not JSON, both numbers are too high rather than too
/// low.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JsonShape {
    /// The number of values, including those in others.
    pub values: usize,
    /// How deep arrays and objects are nested.
    pub depth: usize,
}

/// Returns why the body of a request is not parsed, if it has more values than a body may have.
pub fn refusal(body: &[u8]) -> Option<String> {
    let values = shape(body).values;
    (values > MOST_VALUES)
        .then(|| format!("the body has {values} values, over the limit of {MOST_VALUES}"))
}

/// Returns the shape of a JSON text.
pub fn shape(json: &[u8]) -> JsonShape {
    let mut shape = JsonShape {
        values: 1,
        depth: 0,
    };
    let mut depth = 0_usize;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                shape.values += 1;
                shape.depth = shape.depth.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => shape.values += 1,
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    shape
}

fn skip_string<'a>(bytes: &mut impl Iterator<Item = &'a u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_text_are_counted_outside_of_strings() {
        for (text, values, depth) in [
            ("", 1, 0),
            ("1", 1, 0),
            (r#""a,[{\"b,""#, 1, 0),
            (r#"["\\",{"":0},{"":0}]"#, 6, 2),
            ("[[[", 4, 3),
            ("]]]],", 2, 0),
            (r#""open,"#, 1, 0),
        ] {
            assert_eq!(
                shape(text.as_bytes()),
                JsonShape { values, depth },
                "{text}"
            );
        }
    }
}
