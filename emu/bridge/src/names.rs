//! Names of the cards that a program sees, in place of `mlx5_N`.

/// The environment variable with the names: for programs that name a device of their own, such as that of a bond.
pub const NAMES_VARIABLE: &str = "FLEXCAST_DEVICE_NAMES";
/// Longest name in bytes: the array of C's `struct ibv_device` holds one more, the terminator.
const LONGEST: usize = 63;

/// Reads names of cards, in the order of the cards and separated by commas. An empty one is none: that card keeps its
/// name, as do cards behind the last.
///
/// `cards`: how many there are, as far as that is known.
///
/// # Errors
/// A sentence about the first name that no device can have, or that two would have.
pub fn device_names(text: &str, cards: Option<usize>) -> Result<Vec<Option<String>>, String> {
    let names: Vec<Option<String>> =
        text.split(',').map(|name| Some(name.trim().to_owned()).filter(|name| !name.is_empty())).collect();
    let own = |card: usize| format!("mlx5_{card}");
    for (card, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        if name.len() > LONGEST {
            return Err(format!("device name `{name}` has {} bytes: {LONGEST} are possible", name.len()));
        }
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if !name.bytes().all(known) || name.starts_with('.') {
            return Err(format!("device name `{name}`: letters, digits and _ - . are possible, the first no dot"));
        }
        let is_of_other = |other: &usize| match names.get(*other) {
            Some(Some(theirs)) => theirs == name,
            _ => own(*other) == *name,
        };
        let number = name.strip_prefix("mlx5_").and_then(|number| number.parse().ok());
        let number = number.filter(|number| cards.is_none_or(|cards| *number < cards));
        if let Some(other) = (0..names.len()).chain(number).find(|other| *other != card && is_of_other(other)) {
            return Err(format!("device name `{name}` is that of cards {card} and {other}: give each its own"));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_devices_and_each_is_of_one_card() {
        let names = device_names("mlx5_bond_0, ,roce.1", None).unwrap();
        assert_eq!(names, [Some("mlx5_bond_0".to_owned()), None, Some("roce.1".to_owned())]);
        assert_eq!(device_names("mlx5_1,mlx5_0", None).unwrap().len(), 2, "exchanged");
        assert_eq!(device_names("mlx5_2", Some(2)).unwrap().len(), 1, "there is no third card");
        for (text, part) in [
            ("a/b", "`a/b`: letters, digits"),
            ("..", "the first no dot"),
            ("a b", "`a b`"),
            ("x,y,x", "`x` is that of cards 0 and 2"),
            ("mlx5_1", "`mlx5_1` is that of cards 0 and 1"),
            (&"n".repeat(64), "has 64 bytes: 63"),
        ] {
            let error = device_names(text, Some(2)).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(device_names(&"n".repeat(63), None).is_ok() && device_names("", None).is_ok());
    }
}
