"""Prices that the tables do not have, fitted to some rows of the silicon sample."""

import itertools
import math
from collections import Counter, defaultdict

import numpy

from measured.run import Prices
from measured.sample import are_siblings, is_dense, machine

# Prices that rows of all groups are simulated with. What lies between is interpolated, so that
# thousands of others can be tried in a fit.
#
# All of them have an arrival: without one a request always comes at the end of a step, and never
# waits for the rest of another.
PROMPTS, LAUNCHES, DECODES, ARRIVAL = (1.0, 1.4), (0.3, 0.8, 1.3), 1.2, 8.0
MIDDLE = Prices(launch=LAUNCHES[1], arrival=ARRIVAL)
SLOWER = MIDDLE._replace(decodes=DECODES)
POINTS = [MIDDLE._replace(prompts=prompts, launch=launch) for prompts in PROMPTS for launch in LAUNCHES] + [SLOWER]
# Where a search begins, its first steps, and what it may not leave.
START, STEPS = Prices(1.05, 1.2, 0.8, 8.0, 2.0, 0.2), (0.08, 0.1, 0.2, 4.0, 2.0, 0.1)
LEAST, MOST = Prices(0.8, 0.8, 0.2, 1.0), Prices(1.5, 2.0, LAUNCHES[-1], 100.0, 50.0, 2.0)
# How much longer the launch of a layer of experts takes than that of a dense one: 86 ms of 48 layers
# were recorded on an H100, and 30 ms of 32.
EXPERTS = 1.9
# Weights of a machine with the same model on GPUs of the same generation, of which other rows choose
# one.
WEIGHTS = (1, 8, 64)


def layer_share(group):
    """The launch of a layer of a model beside that of a dense one."""
    return 1.0 if is_dense(group[0]) else EXPERTS


def of_group(prices, group):
    """Prices with the launches of a group's layers."""
    return prices._replace(launch=prices.launch * layer_share(group))


class Lines:
    """Rows of some machines with the metrics at POINTS, as arrays of logarithms."""

    def __init__(self, lines, spread):
        self.machines = [machine(line["group"]) for line in lines]
        self.tokens = numpy.array([line["row"]["isl"] * (1 - spread / 2) for line in lines])
        self.requests = numpy.array([line["row"]["concurrency"] for line in lines], float)
        self.layers = numpy.array([layer_share(line["group"]) for line in lines])
        self.metrics, self.measured, self.slower = {}, {}, {}
        for metric in ("ttft", "tpot"):
            at = lambda prices: numpy.log([line["points"][prices][metric] for line in lines])
            self.metrics[metric] = numpy.array([[at(MIDDLE._replace(prompts=prompts, launch=launch))
                                                 for launch in LAUNCHES] for prompts in PROMPTS])
            self.slower[metric] = (at(SLOWER) - at(MIDDLE)) / math.log(DECODES)
            self.measured[metric] = numpy.log([line["measured"][metric] for line in lines])

    def metric(self, name, prices):
        """Logarithms of a metric at prices between those of POINTS."""
        launches, rows = prices.launch * self.layers, numpy.arange(len(self.layers))
        high = numpy.where(launches <= LAUNCHES[1], 1, 2)
        least, most = numpy.take(LAUNCHES, high - 1), numpy.take(LAUNCHES, high)
        share = (launches - least) / (most - least)
        few, many = ((1 - share) * times[high - 1, rows] + share * times[high, rows] for times in self.metrics[name])
        share = math.log(prices.prompts / PROMPTS[0]) / math.log(PROMPTS[1] / PROMPTS[0])
        time = few + share * (many - few) + self.slower[name] * math.log(prices.decodes)
        if name == "tpot":
            return time
        outside = prices.arrival - ARRIVAL + prices.token / 1000 * self.tokens + prices.request * self.requests
        return numpy.log(numpy.maximum(numpy.exp(time) + outside, 1.0))

    def errors(self, prices):
        """Absolute logarithmic errors of TPOT and TTFT of each row, added up."""
        return sum(abs(self.metric(name, prices) - self.measured[name]) for name in self.metrics)


def fitted(lines, spread, target, weight):
    """The prices of these rows for a machine that is not among them.

    The least weighted sum of absolute logarithmic errors of TPOT and TTFT, by a search along one
    price after the other with ever smaller steps. Machines count alike, but for siblings of the
    target.
    """
    sizes = Counter(machine(line["group"]) for line in lines)
    rows = Lines(lines, spread)
    weights = numpy.array([(weight if are_siblings(found, target) else 1) / sizes[found] for found in rows.machines])
    error = lambda prices: float(weights @ rows.errors(prices))
    best, steps = START, STEPS
    least = error(best)
    for _ in range(6):
        moved = True
        while moved:
            moved = False
            for index, step in itertools.product(range(len(best)), (-1, 1)):
                price = min(MOST[index], max(LEAST[index], best[index] + step * steps[index]))
                tried = best._replace(**{best._fields[index]: price})
                found = error(tried)
                if found < least - 1e-9:
                    best, least, moved = tried, found, True
        steps = tuple(step / 2 for step in steps)
    return best


def without(lines, *left):
    """The rows of all other machines."""
    return [line for line in lines if machine(line["group"]) not in left]


def chosen(lines, spread, target):
    """The weight of siblings for a machine, by how well others are predicted.

    Each other machine is predicted from all but itself and the target, which has no part in it.
    """
    totals = defaultdict(float)
    for other in sorted({machine(line["group"]) for line in lines} - {target}):
        training = without(lines, target, other)
        judged = Lines([line for line in lines if machine(line["group"]) == other], spread)
        if any(are_siblings(machine(line["group"]), other) for line in training):
            for weight in WEIGHTS:
                totals[weight] += float(judged.errors(fitted(training, spread, other, weight)).mean())
    return min(totals, key=totals.get, default=WEIGHTS[0])


def held_out(lines, spread, target):
    """Prices for a machine, from all others alone, and the weight of its siblings."""
    others = without(lines, target)
    weight = chosen(others, spread, target)
    return fitted(others, spread, target, weight), weight
