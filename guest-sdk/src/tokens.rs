#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod table;

use alloc::string::String;

use serde::de::DeserializeOwned;
use vcr_policy::tokens::TokenRequest;

/// Chooses the output tokens of one engine's requests.
///
/// One value serves one engine. Each running request has its own state, a [`Request`](Self::Request). Equally
/// configured values must give equal answers to equal calls.
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
    /// The source's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error names a
    /// misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// State of a running request.
    type Request;

    /// Makes the source of one engine. Most sources draw from the seeds of the requests instead of `seed`, so that a
    /// request gets the same output on every engine.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Starts a request.
    ///
    /// # Errors
    /// Refuses this request only: it ends with an error and gets no tokens. The text is logged and, if the frontend
    /// can do so, sent to the user: say which parameter of the request is unsupported. A run in virtual time has no
    /// user to notify, so it ends with the error.
    fn start(&mut self, request: &TokenRequest<'_>) -> Result<Self::Request, String>;

    /// Returns output token `index` of a request. `index` counts up from 0.
    ///
    /// To end the output, return the request's end token or one of its stop tokens. The host may ask for a few tokens
    /// after that one and discards them.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn next_token(&mut self, request: &mut Self::Request, index: u32) -> Result<u32, String>;

    /// Returns how many of a request's draft tokens are accepted in each step that verifies drafts: the first ones,
    /// or all if the step verifies fewer. Called after each step of the request. The answer applies from this step
    /// on; `None` changes nothing.
    ///
    /// Until the first `Some`, the engine's acceptance rates apply.
    fn accepted_drafts(&mut self, request: &mut Self::Request) -> Option<u32> {
        let _ = request;
        None
    }
}
