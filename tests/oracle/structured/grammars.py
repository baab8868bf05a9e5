"""Grammars of structured outputs that are compiled when a case says so, and take as many drafts as it says."""

from concurrent.futures import Future

from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar


class PretendedGrammar(StructuredOutputGrammar):
    """Takes all outputs; `fitting` says how many of some drafts it takes."""

    def __init__(self, fitting):
        self._fitting = fitting

    def accept_tokens(self, request_id, tokens):
        return True

    def validate_tokens(self, tokens):
        return tokens[: self._fitting(len(tokens))] if tokens else []

    def rollback(self, num_tokens):
        pass

    def fill_bitmask(self, bitmask, batch_index):
        pass

    def is_terminated(self):
        return False

    def reset(self):
        pass


class PretendedGrammars:
    """The grammars of a case's requests. `schedule` is the number of the one whose drafts are checked next."""

    def __init__(self, answers, outputs):
        self.schedule = 0
        self._invalid = {}
        self._answers = answers
        self._outputs = outputs
        self._due = {}

    @staticmethod
    def params(request):
        """What a request's sampling parameters say of structured outputs."""
        return StructuredOutputsParams(json_object=True) if "grammar" in request else None

    def begin(self, request, made, iteration):
        """The compilation of a request's grammar begins; `made` is the request as vLLM has it."""
        if "grammar" in request:
            future = Future()
            made.structured_output_request.grammar = future
            self._due[request["id"]] = (iteration + request["grammar"]["in"], future, request["grammar"].get("fails", False))

    def pending(self):
        """Whether any compilation has still to end."""
        return bool(self._due)

    def end_due(self, iteration, known):
        """Ends compilations; gives [request, whether it has a grammar] of those that are `known` to the scheduler."""
        ended = []
        for identity in sorted(self._due):
            at, future, fails = self._due[identity]
            if at > iteration:
                continue
            del self._due[identity]
            if fails:
                future.set_exception(ValueError("pretended"))
            else:
                future.set_result(PretendedGrammar(lambda drafts, identity=identity: self._fitting(identity, drafts)))
            if str(identity) in known:
                ended.append([identity, not fails])
        return ended

    def check_drafts(self, scheduler, output, schedule, names, count):
        """The `count` drafts that the step before has for each of `names` are checked, before they are verified."""
        if names:
            self.schedule = schedule
            drafts = DraftTokenIds(sorted(names, key=int), [[0] * count for _ in names])
            scheduler.update_draft_token_ids_in_output(drafts, output)

    def write_invalid(self, line, checked):
        """Drafts that do not fit a grammar: of those just proposed, or `checked` before they were verified, by name."""
        invalid, self._invalid = self._invalid, {}
        if checked is not None:
            invalid = {int(name): count for name, count in checked.items()}
        if written := [[identity, invalid[identity]] for identity, tokens in line["out"] if tokens and identity in invalid]:
            line["inv"] = written

    def _fitting(self, identity, drafts):
        fitting = self._answers.fitting(self.schedule, identity, drafts, self._outputs[identity])
        if fitting < drafts:
            self._invalid[identity] = drafts - fitting
        return fitting
