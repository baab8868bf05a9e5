#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod table;

use alloc::string::String;

use serde::de::DeserializeOwned;
use vcr_policy::tokens::TokenRequest;

/// Chooses the output tokens of one engine's requests.
///
/// One value serves one engine. The state of a running request is a value of its own,
/// [`Request`](Self::Request). Equally configured values must give equal answers to equal calls.
///
/// ```
/// use vcr_guest_sdk::{TokenGuest, TokenRequest, export_token_source, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {}
///
/// /// Says the prompt again, and stops.
/// struct Echo;
///
/// impl TokenGuest for Echo {
///     type Config = Config;
///     type Request = (Vec<u32>, u32);
///
///     fn configure(_config: Config, _seed: u64) -> Result<Self, String> {
///         Ok(Self)
///     }
///
///     fn start(&mut self, request: &TokenRequest<'_>) -> Result<Self::Request, String> {
///         let end = request.eos_token.ok_or("`echo` needs requests with an end token")?;
///         Ok((request.prompt.to_vec(), end))
///     }
///
///     fn next_token(&mut self, (prompt, end): &mut Self::Request, index: u32) -> Result<u32, String> {
///         Ok(prompt.get(index as usize).copied().unwrap_or(*end))
///     }
/// }
///
/// export_token_source!(Echo);
///
/// let mut echo = Echo;
/// let request = TokenRequest { prompt: &[5], eos_token: Some(2), ..TokenRequest::default() };
/// let mut kept = echo.start(&request)?;
/// assert_eq!([echo.next_token(&mut kept, 0)?, echo.next_token(&mut kept, 1)?], [5, 2]);
/// # Ok::<(), String>(())
/// ```
pub trait TokenGuest: Sized + 'static {
    /// The source's config, read from the user's JSON. Give it
    /// `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error that
    /// names the key, and `#[serde(default)]` where fields may be left out.
    type Config: DeserializeOwned;

    /// State of a request from its start to its end.
    type Request;

    /// Makes the source of one engine. Most sources draw from the seeds of the
    /// requests instead of `seed`, so that a request gets the same output on
    /// every engine.
    ///
    /// # Errors
    /// When the config is invalid; the text is shown to the user and should name the field, its
    /// value and what to write instead.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// A request starts, whose tokens will be wanted.
    ///
    /// # Errors
    /// Refuses this request, and no other: it ends with an error and gets no
    /// tokens. The text is logged and, where the frontend can, sent to its user:
    /// it should say what of the request cannot be followed. A run in virtual
    /// time, where no user could be notified, ends with it.
    fn start(&mut self, request: &TokenRequest<'_>) -> Result<Self::Request, String>;

    /// Output token `index` of a request; indices rise from 0 one by one.
    ///
    /// To end the output, answer the request's end token or one of its stop tokens. A few more may
    /// be wanted after it; those are discarded.
    ///
    /// # Errors
    /// Ends the run; the text is shown to the user.
    fn next_token(&mut self, request: &mut Self::Request, index: u32) -> Result<u32, String>;

    /// How many drafts of a request are accepted in each step that verifies some: the first ones,
    /// or all if the step verifies fewer. Called after the request's tokens of a step; the answer
    /// applies from this step on, and `None` changes nothing.
    ///
    /// A request without any `Some` has the engine's acceptance rates.
    fn accepted_drafts(&mut self, request: &mut Self::Request) -> Option<u32> {
        let _ = request;
        None
    }
}
