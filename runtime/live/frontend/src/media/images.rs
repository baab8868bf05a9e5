//! Images in the answers of chats, as in llm-d-inference-sim's omni mode.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::HeaderMap;
use vcr_base::random::Stream;
use vcr_core::seed::derive;

/// The image in all answers: a PNG with one transparent pixel.
pub(crate) const IMAGE_URL: &str = "data:image/png;base64,\
    iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR42mNgAAIAAAUAAen63NgAAAAASUVORK5CYII=";

/// A request header that asks for an image in the answer.
const HEADER: &str = "x-send-image";

/// The probability of an image in an answer, and the time to generate it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageOptions {
    /// The probability of an image if the request does not ask for one.
    pub rate: f64,
    /// Mean time to generate an image, in nanoseconds.
    pub time_ns: u64,
    /// Standard deviation of the time to generate an image, in nanoseconds.
    pub time_std_dev_ns: u64,
    /// The seed of random draws.
    pub seed: u64,
}

/// Decides which chats get images.
#[derive(Debug, Default)]
pub(crate) struct Images {
    options: Option<ImageOptions>,
    /// The number of chats so far. It selects the random draw of a chat.
    chats: AtomicU64,
}

impl Images {
    pub(crate) fn new(options: Option<ImageOptions>) -> Self {
        Self { options, chats: AtomicU64::new(0) }
    }

    /// The time to generate the next chat's image. None if its answer has no image.
    pub(crate) fn of_chat(&self, headers: &HeaderMap) -> Option<Duration> {
        let options = self.options?;
        let number = self.chats.fetch_add(1, Ordering::Relaxed);
        let mut random = Stream::new(derive(options.seed, "serve.images", number), "image");
        let is_drawn = random.unit() < options.rate;
        let is_asked = headers.get(HEADER).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
        (is_asked || is_drawn).then(|| options.draw(&mut random))
    }
}

impl ImageOptions {
    fn draw(&self, random: &mut Stream) -> Duration {
        let spread = if self.time_std_dev_ns == 0 { 0.0 } else { random.normal() * self.time_std_dev_ns as f64 };
        // The cast turns negative times into zero.
        Duration::from_nanos((self.time_ns as f64 + spread) as u64)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    fn asked(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, value.parse().expect("a value"));
        headers
    }

    #[test]
    fn images_are_asked_for_or_drawn() {
        let none = HeaderMap::new();
        assert_eq!(Images::default().of_chat(&asked("true")), None);
        let options = ImageOptions { time_ns: 5, ..ImageOptions::default() };
        let on_demand = Images::new(Some(options));
        assert_eq!(on_demand.of_chat(&asked("TRUE")), Some(Duration::from_nanos(5)));
        assert_eq!((on_demand.of_chat(&asked("yes")), on_demand.of_chat(&none)), (None, None));
        let drawn = |rate, seed| {
            let images = Images::new(Some(ImageOptions { rate, seed, ..options }));
            (0..200).map(|_| images.of_chat(&none).is_some()).collect::<Vec<_>>()
        };
        let count = |drawn: &[bool]| drawn.iter().filter(|is_drawn| **is_drawn).count();
        assert_eq!((count(&drawn(0.0, 1)), count(&drawn(1.0, 1))), (0, 200));
        assert!((60..140).contains(&count(&drawn(0.5, 1))), "{}", count(&drawn(0.5, 1)));
        assert_eq!(drawn(0.5, 1), drawn(0.5, 1));
        assert_ne!(drawn(0.5, 1), drawn(0.5, 2));
    }

    #[test]
    fn times_spread_around_their_mean_and_are_never_negative() {
        let options = ImageOptions { time_ns: 1000, time_std_dev_ns: 900, ..ImageOptions::default() };
        let mut random = Stream::new(1, "image");
        let times: Vec<u128> = (0..1000).map(|_| options.draw(&mut random).as_nanos()).collect();
        assert!(times.contains(&0) && times.iter().any(|time| *time > 1500));
        let mean = times.iter().sum::<u128>() / 1000;
        assert!((950..1150).contains(&mean), "{mean}");
    }

    #[test]
    fn the_image_is_a_png_of_one_pixel() {
        let data = IMAGE_URL.strip_prefix("data:image/png;base64,").expect("a data URL");
        let file = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        let size = imagesize::blob_size(&file).expect("a PNG");
        assert_eq!((size.width, size.height), (1, 1));
    }
}
