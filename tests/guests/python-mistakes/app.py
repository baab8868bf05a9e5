"""A router that makes the mistake that its config names."""

from vcr_guest import REFUSE, GuestError, RouteRequest, Router, WorkerLoad, routing


class Mistaken(Router):
    def __init__(self, config, seed):
        self.mistake = config.get("mistake")
        if self.mistake == "keyword":
            RouteRequest(0, identity=1)
        if self.mistake == "exit":
            raise SystemExit("as asked")

    def route(self, request: RouteRequest, workers: list[WorkerLoad]):
        if self.mistake == "forgotten return":
            workers[0].worker
        elif self.mistake == "text":
            return str(workers[0].worker)
        elif self.mistake == "negative":
            return -1
        elif self.mistake == "short list":
            return self.third(workers).worker
        elif self.mistake == "show":
            raise GuestError(f"{request.adapter} {workers}")
        elif self.mistake == "refuse":
            return REFUSE
        elif self.mistake == "missing method":
            return super().route(request, workers)
        else:
            return workers[-1].worker

    def third(self, workers):
        return workers[2]


Routing = routing(Mistaken)
