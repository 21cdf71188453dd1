//! PyTorch's settings, as they are written in `PYTORCH_CUDA_ALLOC_CONF`.

use cuda_mem_ipc::cuda_mem_pool::segments::{Options, OptionsError};

use super::super::error::Failure;

const MIB: u64 = 1 << 20;
/// The largest interval of `roundup_power2_divisions` begins at 2 to this power, in MiB.
const LAST: u32 = 15;

/// Every key, what it takes, and what it does here.
const KEYS: [(&str, Does); 22] = [
    ("backend", Does::Counts),
    ("expandable_segments", Does::Counts),
    ("expandable_segments_reserve", Does::Moot("addresses are reserved as they are needed")),
    ("expandable_segments_reserve_by_class", Does::Moot("addresses are reserved as they are needed")),
    ("garbage_collection_threshold", Does::Counts),
    ("graph_capture_record_stream_reuse", Does::Counts),
    ("large_segment_size_mb", Does::Counts),
    ("max_non_split_rounding_mb", Does::Counts),
    ("max_split_size_mb", Does::Counts),
    ("per_process_memory_fraction", Does::Counts),
    ("pinned_free_catch_all", Does::Host("no free throws")),
    ("pinned_max_cached_size_mb", Does::Counts),
    ("pinned_max_round_threshold_mb", Does::Host("sizes are exact")),
    (
        "pinned_num_register_threads",
        Does::Host("as many threads bring pages in as there are processors, up to 16"),
    ),
    ("pinned_reserve_segment_size_mb", Does::Host("small blocks share segments that grow with what is held")),
    (
        "pinned_use_background_threads",
        Does::Host("requests take blocks whose streams are done without a wait"),
    ),
    ("pinned_use_cuda_host_register", Does::Host("memory is registered")),
    ("pinned_use_hip_host_register", Does::Host("memory is registered")),
    ("release_lock_on_cudamalloc", Does::Moot("no lock is held that another thread's allocation needs")),
    ("release_lock_on_hipmalloc", Does::Moot("no lock is held that another thread's allocation needs")),
    ("roundup_power2_divisions", Does::Counts),
    ("throw_on_cudamalloc_oom", Does::Counts),
];

/// What a key does.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// What it says.
    Counts,
    /// Nothing: what it is about is so already, or done otherwise.
    Moot(&'static str),
    /// Nothing for pinned host memory of this library, whatever its value; what it says for PyTorch's own.
    Host(&'static str),
}

/// Settings that were understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) options: Options,
    pub(super) memory_fraction: Option<f64>,
    /// Whether blocks that streams used may serve their capture again.
    pub(super) reuse: bool,
    /// Whether the default pool grows by pages.
    pub(super) expandable: bool,
    /// What to say of keys that do nothing here.
    pub(super) notes: Vec<String>,
}

impl Settings {
    /// Reads `key:value,key:[a:b,>:c]`. Keys that are not named have their defaults. As for PyTorch, whatever sign stands between a key and
    /// its value, and behind that, parts them.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let options = Options::default();
        let mut settings =
            Self { options, memory_fraction: None, reuse: false, expandable: true, notes: Vec::new() };
        let tokens = tokens(text);
        let mut rest = &tokens[..];
        while let [key, after @ ..] = rest {
            let (value, left) = value(after).ok_or_else(|| {
                Failure::argument(format!(
                    "{key:?} of {text:?} has no value, or a [ without a ]; accepted: key:value"
                ))
            })?;
            rest = left;
            let Some((key, does)) = KEYS.iter().find(|(known, _)| known == key) else {
                let keys = KEYS.map(|(key, _)| key).join(", ");
                return Err(Failure::argument(format!(
                    "there is no setting {key:?}; the settings are {keys}"
                )));
            };
            match does {
                Does::Counts => settings.apply(key, &value)?,
                Does::Moot(why) => {
                    if key.starts_with("release_lock") {
                        truth(key, &value)?;
                    }
                    settings.notes.push(format!("{key}:{value} changes nothing: {why}"));
                }
                Does::Host(why) => settings.notes.push(format!(
                    "{key}:{value} is for PyTorch's own pinned memory (pinned=False): here {why}"
                )),
            }
        }
        settings.options.check().map_err(not_accepted)?;
        Ok(settings)
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let options = &mut self.options;
        // As for PyTorch a number below 0 is more than there is.
        let mib = || number::<u64>(key, value).or_else(|_| number::<i64>(key, value).map(|_| u64::MAX));
        let bytes = || mib().map(|mib| mib.saturating_mul(MIB));
        match key {
            "backend" if value == "native" => {}
            "backend" => {
                return Err(refused(
                    key,
                    value,
                    "native, as this allocator takes the place of the native one",
                ));
            }
            "expandable_segments" => self.expandable = truth(key, value)?,
            "garbage_collection_threshold" => {
                options.garbage_collection_threshold = Some(number(key, value)?);
            }
            "graph_capture_record_stream_reuse" => self.reuse = truth(key, value)?,
            "large_segment_size_mb" => options.large_segment_size = bytes()?,
            "max_non_split_rounding_mb" => options.max_non_split_rounding = Some(bytes()?),
            "max_split_size_mb" => options.max_split_size = Some(bytes()?),
            "per_process_memory_fraction" => match number(key, value)? {
                fraction @ 0.0..=1.0 => self.memory_fraction = Some(fraction),
                _ => return Err(refused(key, value, "a number from 0 to 1")),
            },
            // The code over this one does what these two say.
            "pinned_max_cached_size_mb" => _ = number::<i64>(key, value)?,
            "throw_on_cudamalloc_oom" => _ = truth(key, value)?,
            _ => options.roundup_power2_divisions = divisions(key, value)?,
        }
        Ok(())
    }
}

/// One number for all sizes, or `[64:8,256:4,>:1]`: from so many MiB on, so many steps. The first counts below it, too.
fn divisions(key: &str, value: &str) -> Result<[u64; 16], Failure> {
    let Some(list) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) else {
        return Ok([number(key, value)?; 16]);
    };
    let accepted = "[SIZE:STEPS,…,>:STEPS], SIZE a power of two in MiB";
    let mut divisions = [0; 16];
    let mut next = 0;
    for (at, entry) in tokens(list).chunks(4).enumerate() {
        let [size, _, steps, ..] = entry else { return Err(refused(key, value, accepted)) };
        let steps: u64 = number(key, steps)?;
        if size == ">" {
            divisions[next..].fill(steps);
            continue;
        }
        let size: u64 = number(key, size)?;
        if !size.is_power_of_two() {
            return Err(refused(key, value, accepted));
        }
        let place = size.ilog2().min(LAST) as usize;
        if at == 0 {
            divisions[..place].fill(steps);
        }
        divisions[place] = steps;
        next = place + 1;
    }
    Ok(divisions)
}

/// As PyTorch reads it, whatever follows the number: `512MB` is 512. No digit does, as of one that is too large.
fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, Failure> {
    let is_end = |&end: &usize| !value.as_bytes().get(end).is_some_and(u8::is_ascii_digit);
    let mut ends = (1..=value.len()).rev().filter(is_end);
    ends.find_map(|end| value.get(..end)?.parse().ok()).ok_or_else(|| refused(key, value, "a number"))
}

fn truth(key: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(refused(key, value, "True, False")),
    }
}

fn refused(key: &str, value: &str, accepted: &str) -> Failure {
    // "is invalid" is how PyTorch says it, and what programs look for.
    Failure::argument(format!("{key} is invalid: {value:?}; accepted: {accepted}"))
}

/// A value that does not go with the others, by the names and in the units of the settings.
fn not_accepted(error: OptionsError) -> Failure {
    let mib = |bytes: u64| (bytes / MIB).to_string();
    let at_least = |least| format!("at least large_segment_size_mb, which is {}", mib(least));
    match error {
        OptionsError::LargeSegmentSize { bytes } => refused("large_segment_size_mb", &mib(bytes), "above 10"),
        OptionsError::MaxSplitSize { bytes, least } => {
            refused("max_split_size_mb", &mib(bytes), &at_least(least))
        }
        OptionsError::MaxNonSplitRounding { bytes, least } => {
            refused("max_non_split_rounding_mb", &mib(bytes), &at_least(least))
        }
        OptionsError::GarbageCollectionThreshold { threshold } => {
            refused("garbage_collection_threshold", &threshold.to_string(), "a number above 0 and below 1")
        }
        error => Failure::argument(error.to_string()),
    }
}

/// The words of settings and the signs that part them, without white space.
fn tokens(text: &str) -> Vec<String> {
    const SIGNS: [char; 4] = [',', ':', '[', ']'];
    let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let parts = text.split_inclusive(SIGNS).flat_map(|part| {
        let word = part.trim_end_matches(SIGNS);
        [word, &part[word.len()..]]
    });
    parts.filter(|token| !token.is_empty()).map(str::to_owned).collect()
}

/// What comes after a key: its value, a list as a whole, and the rest. None if there is no value, or no end of the list.
fn value(after: &[String]) -> Option<(String, &[String])> {
    let [_, value, ..] = after else { return None };
    let length = if value == "[" { after.iter().position(|token| token == "]")? } else { 1 };
    Some((after[1..=length].concat(), after.get(length + 2..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Settings::parse(text).unwrap_err().message
    }

    #[test]
    fn settings_are_understood() {
        let text = "max_split_size_mb:128, large_segment_size_mb:32,garbage_collection_threshold:0.6,\
                    roundup_power2_divisions:[4:2,16:8,>:1],per_process_memory_fraction:0.5,expandable_segments:True";
        let settings = Settings::parse(text).unwrap();
        let options = settings.options;
        assert_eq!((options.max_split_size, options.large_segment_size), (Some(128 << 20), 32 << 20));
        assert_eq!(options.garbage_collection_threshold, Some(0.6));
        assert_eq!(options.roundup_power2_divisions[..6], [2, 2, 2, 0, 8, 1]);
        assert_eq!(settings.memory_fraction, Some(0.5));
        assert!(settings.notes.is_empty() && settings.expandable);
        assert!(!Settings::parse("expandable_segments:False").unwrap().expandable);
        let later = "throw_on_cudamalloc_oom:True,expandable_segments_reserve:40G,\
                     expandable_segments_reserve_by_class:[kv:0.5,weights:8G],pinned_free_catch_all:True";
        assert_eq!(Settings::parse(later).unwrap().notes.len(), 3);
        assert_eq!(Settings::parse("").unwrap().options, Options::default());
        let reuse = |text| Settings::parse(text).unwrap().reuse;
        assert!(reuse("graph_capture_record_stream_reuse:True"));
        assert!(!reuse("graph_capture_record_stream_reuse:False") && !reuse(""));
        let divisions = |text| Settings::parse(text).unwrap().options.roundup_power2_divisions;
        assert_eq!(divisions("roundup_power2_divisions:4"), [4; 16]);
    }

    #[test]
    fn spellings_that_pytorch_accepts_are_understood() {
        let options = |text| Settings::parse(text).unwrap().options;
        for text in ["max_split_size_mb:64MB", "max_split_size_mb:64.5", "max_split_size_mb:+64,"] {
            assert_eq!(options(text).max_split_size, Some(64 << 20), "{text}");
        }
        for text in ["max_split_size_mb:-1", "max_split_size_mb:18446744073709551615"] {
            assert_eq!(options(text).max_split_size, Some(u64::MAX), "{text}");
        }
        assert_eq!(options("garbage_collection_threshold:0.5f").garbage_collection_threshold, Some(0.5));
        assert_eq!(Settings::parse("per_process_memory_fraction:.5x").unwrap().memory_fraction, Some(0.5));
        let divisions = options("roundup_power2_divisions:[2:4,8:2,>:1,]").roundup_power2_divisions;
        assert_eq!(divisions[..6], [4, 4, 0, 2, 1, 1]);
        assert_eq!(options("roundup_power2_divisions:[]").roundup_power2_divisions, [0; 16]);
        // It looks at no sign between key, value and the next key.
        for text in ["max_split_size_mb:64]", "max_split_size_mb,64", "max_split_size_mb:64:"] {
            assert_eq!(options(text).max_split_size, Some(64 << 20), "{text}");
        }
        assert!(!Settings::parse("expandable_segments:False:").unwrap().expandable);
        let divisions = options("roundup_power2_divisions:[2,4:8[2,>:1]").roundup_power2_divisions;
        assert_eq!(divisions[..6], [4, 4, 0, 2, 1, 1]);
        for text in
            ["max_split_size_mb:64,,backend:native", "[max_split_size_mb:64", "max_split_size_mb:[64]"]
        {
            assert!(error(text).contains("accepted: ") || error(text).contains("no setting"), "{text}");
        }
        assert!(Settings::parse("pinned_max_cached_size_mb:-1").is_ok());
        for text in ["max_split_size_mb:MB64", "max_split_size_mb:", "roundup_power2_divisions:[4:2,,8:2]"] {
            assert!(error(text).contains("accepted: "), "{text}");
        }
        assert!(error("large_segment_size_mb:-20").contains("large_segment_size_mb is invalid"));
    }

    #[test]
    fn errors_name_the_value_and_what_is_accepted() {
        assert!(error("max_split:1").contains("max_split_size_mb"));
        assert!(error("backend:cudaMallocAsync").contains("accepted: native, as this"));
        assert!(error("graph_capture_record_stream_reuse:1").contains("\"1\"; accepted: True, False"));
        assert!(error("throw_on_cudamalloc_oom:1").contains("\"1\"; accepted: True, False"));
        assert!(error("expandable_segments:yes").contains("\"yes\"; accepted: True, False"));
        assert!(error("max_split_size_mb:x").contains("accepted: a number"));
        assert!(error("max_split_size_mb:18446744073709551616").contains("accepted: a number"));
        let least = "accepted: at least large_segment_size_mb, which is";
        assert_eq!(error("max_split_size_mb:1"), format!("max_split_size_mb is invalid: \"1\"; {least} 20"));
        let both = error("large_segment_size_mb:40,max_non_split_rounding_mb:30");
        assert_eq!(both, format!("max_non_split_rounding_mb is invalid: \"30\"; {least} 40"));
        let small = error("large_segment_size_mb:10");
        assert_eq!(small, "large_segment_size_mb is invalid: \"10\"; accepted: above 10");
        assert!(error("garbage_collection_threshold:1").contains("above 0 and below 1"));
        assert!(error("per_process_memory_fraction:2").contains("from 0 to 1"));
        assert!(error("roundup_power2_divisions:[3:2]").contains("power of two"));
        assert!(error("roundup_power2_divisions:[4:2").contains("without a ]"));
        assert!(error("garbage_collection_threshold").contains("key:value"));
    }
}
