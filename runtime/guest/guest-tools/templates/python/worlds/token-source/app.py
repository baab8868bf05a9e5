"""Says the prompt again, token by token, and stops."""

from vcr_guest import GuestError, TokenRequest, TokenSource, known_fields, number, tokens


class Echo(TokenSource):
    def __init__(self, config, seed):
        known_fields(config, ["times"])
        #: How often the prompt is said.
        self.times = int(number(config, "times", 1))
        if self.times < 1:
            raise GuestError(f"invalid `times`: expected at least 1, got {self.times}")

    def start(self, request: TokenRequest) -> TokenRequest:
        if not request.prompt:
            raise GuestError("a request without a prompt has nothing to be said again")
        return request

    def next_token(self, state: TokenRequest, index: int) -> int:
        if index >= self.times * len(state.prompt) and state.eos_token is not None:
            return state.eos_token
        return state.prompt[index % len(state.prompt)]


Tokens = tokens(Echo)
