"""Reads records on its own and prints what a history has to say of them: estimates, and Welch's test between neighbours.

Nothing here is taken from the program: histograms are decoded by the published HdrHistogram V2 layout, the estimate is the
median of all Walsh averages, and the t distribution is integrated.
"""

import base64
import json
import math
import struct
import sys

NEEDED = {"qps": 0, "p50": 200, "p75": 400, "p90": 1000, "p95": 2000, "p99": 10000, "p99.9": 100000}
QUANTILE = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def counts(text):
    """Pairs of (lowest value, width, count) with a count."""
    raw = base64.b64decode(text)
    length = struct.unpack(">I", raw[4:8])[0]
    body, at, index, out = raw[40 : 40 + length], 0, 0, []
    while at < len(body):
        shift = value = 0
        for nth in range(9):
            byte = body[at]
            at += 1
            if nth == 8:
                value |= byte << shift
                break
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        number = (value >> 1) ^ -(value & 1)
        if number < 0:
            index += -number
            continue
        if number:
            bucket, sub = (index >> 10) - 1, (index & 1023) + 1024
            if bucket < 0:
                bucket, sub = 0, sub - 1024
            out.append((sub << bucket, 1 << bucket, number))
        index += 1
    return out


def percentile(steps, total, quantile):
    rank, below = max(1.0, math.ceil(quantile * total)), 0
    for low, width, count in steps:
        if below + count >= rank:
            return low + width * (rank - below - 0.5) / count
        below += count
    return None


def samples(run):
    """{arm: {round: {metric: value}}} of the blocks that may be used."""
    out = {}
    for block in run["blocks"]:
        answered = block.get("achieved")
        failed = block.get("online_crashed") or (block["requests"] > 0 and answered is not None and answered <= 0)
        if not block["valid"] or failed:
            continue
        here = out.setdefault(block["arm"], {}).setdefault(block["round"], {})
        if answered:
            here["qps"] = answered
        steps = counts(block["hist"]) if block.get("hist") else None
        total = sum(step[2] for step in steps) if steps else block["requests"]
        for metric, quantile in QUANTILE.items():
            planned = run["design"].get("percentiles") or []
            if total < NEEDED[metric] or (planned and metric not in planned):
                continue
            if steps:
                here[metric] = percentile(steps, total, quantile)
            elif metric in (block.get("percentiles_us") or {}):
                here[metric] = block["percentiles_us"][metric]
    return out


def logs(run, arm, vs, metric):
    of = samples(run)
    rounds = sorted(set(of.get(arm, {})) & set(of.get(vs, {})))
    sign = -1.0 if metric == "qps" else 1.0
    pairs = [(of[arm][n].get(metric), of[vs][n].get(metric)) for n in rounds]
    return [sign * math.log(a / b) for a, b in pairs if a and b and a > 0 and b > 0]


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def estimate(values):
    walsh = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    return math.expm1(median(walsh)) * 100


def spread(values):
    middle = sum(values) / len(values)
    return middle, math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1)), len(values)


def tail(t, df):
    """Two-sided, by Simpson's rule over the angle, where the density is cos^(df-1)."""
    theta, n = math.atan(abs(t) / math.sqrt(df)), 20000
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    step = theta / n
    total = sum((4 if i % 2 else 2) * math.cos(i * step) ** (df - 1) for i in range(1, n)) + 1 + math.cos(theta) ** (df - 1)
    return max(0.0, 1 - 2 * scale * total * step / 3)


def welch(a, b):
    (m1, s1, n1), (m2, s2, n2) = spread(a), spread(b)
    v1, v2 = s1 * s1 / n1, s2 * s2 / n2
    df = math.floor((v1 + v2) ** 2 / (v1 * v1 / (n1 - 1) + v2 * v2 / (n2 - 1)))
    return tail((m2 - m1) / math.sqrt(v1 + v2), df)


# What the program says, from its standard output; the records, by the paths that it names.
problems, checked, tests = [], 0, 0
for series in json.load(sys.stdin):
    runs = {point["started"]: (point, json.load(open(point["record"]))) for point in series["runs"]}
    for point, run in runs.values():
        for gate in point["gates"]:
            mine = logs(run, series["arm"], gate["vs"], gate["metric"])
            want = {"harm_pct": estimate(mine), "rounds": len(mine)}
            want["mean_log"] = sum(mine) / len(mine)
            if len(mine) > 1:
                want["sd_log"] = spread(mine)[1]
            for name, value in want.items():
                checked += 1
                if abs(gate[name] - value) > 1e-6 * max(1.0, abs(value)):
                    problems.append(f"{point['record']} {series['arm']} {gate['metric']} {name}: {gate[name]}, here {value}")
        for change in point["changes"]:
            before, earlier = runs[change["since"]]
            gate = next(gate for gate in point["gates"] if gate["metric"] == change["metric"])
            a, b = (logs(one, series["arm"], gate["vs"], change["metric"]) for one in (earlier, run))
            want = min(1.0, welch(a, b) * len(point["changes"]))
            tests += 1
            if abs(change["p"] - want) > 1e-6 + 1e-3 * want:
                problems.append(f"{point['record']} {change['metric']} p: {change['p']}, here {want}")
print("\n".join(problems) or f"{checked} figures and {tests} tests agree")
sys.exit(1 if problems else 0)
