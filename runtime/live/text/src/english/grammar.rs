//! The grammar: sentence patterns and the words for their slots.

/// Sentence patterns. `A` is an adjective, `N` a noun, `S` a plural noun, `V` a singular verb, `W` a plural verb,
/// `D` an adverb, `P` a place, `T` a time, `C` an opening connective and `H` a person's role. Other words stand for
/// themselves.
pub(super) const PATTERNS: &[&str] = &[
    "The A N V the N .",
    "Many S W the N every day .",
    "T , the H V a few S P .",
    "The N of the N is A and A .",
    "C , most S are A , but the N is not .",
    "It is A to keep the N A .",
    "The H D V the S P .",
    "When the N is A , the H V it again .",
    "Each N has its own N , which the H V D .",
    "T , several A S W the N P .",
    "There are three S P , and each one V the N .",
    "C , the H and the H work on the same N .",
    "A good N V the A S without delay .",
    "The S that W the N are D A .",
    "If the N V the N , the result is D A .",
    "Both S W more slowly P .",
    "For example , the A N V the S .",
    "The best way to understand the N is to look at its S .",
    "You can also use the N to find A S .",
    "C , this N is more A than the others .",
    "The H wrote about the A N T .",
    "No two S are A in the same way .",
];

const WORDS: &[(&str, &str)] = &[
    (
        "A",
        "small large quiet bright simple useful clear gentle careful steady early modern common local open warm cool \
         green deep wide short long light strong fresh plain rare famous patient curious helpful precise stable \
         reliable flexible calm soft smooth round complete",
    ),
    (
        "N",
        "garden river library bridge market window song letter village harbor machine theory pattern system journey \
         story lesson design project method signal engine forest mountain island museum kitchen school train road \
         city lake field tower map book clock lamp table paper report recipe question answer idea plan model",
    ),
    (
        "S",
        "gardens rivers books bridges markets windows songs letters villages machines patterns systems journeys \
         stories lessons designs projects methods signals trees mountains islands schools trains roads cities lakes \
         fields towers maps clocks lamps papers reports recipes questions answers ideas plans models students \
         readers visitors neighbors birds flowers tools examples details results",
    ),
    (
        "V",
        "supports follows describes improves completes connects changes explains protects shapes carries joins \
         measures reaches keeps offers shows surrounds includes balances repeats needs uses prepares collects \
         compares",
    ),
    (
        "W",
        "support follow describe improve complete connect change explain protect shape carry join measure reach keep \
         offer show surround include balance repeat need use prepare collect compare",
    ),
    (
        "D",
        "often usually quickly slowly carefully quietly always rarely gladly simply clearly gently almost nearly \
         surprisingly",
    ),
    (
        "P",
        "near_the_river in_the_city by_the_window across_the_field at_the_station in_the_garden along_the_coast \
         under_the_bridge inside_the_library on_the_hill beside_the_lake around_the_corner at_home in_the_morning_light",
    ),
    (
        "T",
        "today yesterday last_year in_spring in_summer in_autumn in_winter every_morning this_week long_ago after_lunch \
         before_sunset on_Monday on_Friday at_noon",
    ),
    (
        "C",
        "however therefore in_addition as_a_result in_general at_first in_the_end of_course in_practice \
         on_the_other_hand for_this_reason",
    ),
    (
        "H",
        "teacher writer painter farmer baker engineer doctor student traveler musician gardener sailor scientist \
         librarian carpenter cook",
    ),
];

pub(super) struct Part {
    word: String,
    begins: bool,
}

/// Splits a pattern into its slots.
pub(super) fn parts(pattern: &str) -> impl Iterator<Item = Part> {
    pattern.split(' ').enumerate().map(|(index, word)| {
        // At the start of a sentence, `A` is the article; elsewhere it is an adjective.
        Part { word: word.to_owned(), begins: index == 0 }
    })
}

impl Part {
    /// Whether no space comes before this part.
    pub(super) fn is_attached(&self) -> bool {
        matches!(self.word.as_str(), "." | ",")
    }

    pub(super) fn texts(&self) -> Vec<String> {
        let is_article = self.begins && self.word == "A";
        let class = WORDS.iter().find(|(name, _)| *name == self.word && !is_article);
        let words: Vec<String> = match class {
            None => vec![self.word.clone()],
            Some((_, words)) => words.split_whitespace().map(|word| word.replace('_', " ")).collect(),
        };
        if self.begins { words.iter().map(|word| capitalized(word)).collect() } else { words }
    }
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
