"""The parts of resumable requests' prompts, and when each is sent."""

import heapq


class SessionParts:
    """Knows of each resumable request which part is next and which one its outputs are to. `due` is a heap of
    [iteration, request]."""

    def __init__(self, requests):
        self.due = []
        self._requests = {request["id"]: request for request in requests}
        self._sent = {request["id"]: 0 for request in requests if "parts" in request}
        self._ended = dict(self._sent)

    def has(self, identity):
        """Whether the request is resumable."""
        return identity in self._sent

    def chunks(self, scheduler):
        """The resumable requests whose latest chunk ended within their prompt."""
        known = ((identity, scheduler.requests.get(str(identity))) for identity in self._sent)
        return [identity for identity, request in known if request is not None and request.is_prefill_chunk]

    def take_due(self, iteration):
        """The parts to be sent in this iteration, with the numbers of their requests."""
        while self.due and self.due[0][0] <= iteration:
            _, identity = heapq.heappop(self.due)
            part = self._requests[identity]["parts"][self._sent[identity]]
            part["at"] = iteration
            self._sent[identity] += 1
            yield identity, part

    def sent(self, identity, iteration):
        """A request was added, or a part of it was sent."""
        self._plan(identity, "sent", iteration)

    def ended(self, identity, iteration):
        """The outputs to a part have ended."""
        self._ended[identity] += 1
        if self._ended[identity] == self._sent[identity] + 1:
            self._plan(identity, "ended", iteration)

    def stop_at(self, identity):
        """At which output the model stops the part whose outputs come."""
        request = self._requests[identity]
        ended = self._ended.get(identity, 0)
        part = request["parts"][ended - 1] if ended else request
        return part.get("stop_at")

    def _plan(self, identity, event, iteration):
        parts = self._requests[identity].get("parts", ())
        number = self._sent.get(identity, 0)
        if number >= len(parts):
            return
        part = parts[number]
        if "at" in part and event == "sent":
            # Of a recording.
            heapq.heappush(self.due, (part["at"], identity))
        elif "at" not in part and part["after"] == event:
            heapq.heappush(self.due, (iteration + part["gap"], identity))
