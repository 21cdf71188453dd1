# Makes docs/driver-codes.md of one or more results.jsonl: call, situation, code. Usage: codes.py FILE... > docs/driver-codes.md
import json, re, sys

NAMES = {0: "success", 1: "invalid value", 2: "out of memory", 3: "not initialized", 101: "invalid device", 201: "invalid context",
         205: "map failed", 400: "invalid handle", 401: "illegal state", 500: "not found", 600: "not ready", 700: "illegal address",
         709: "context is destroyed", 712: "host memory already registered", 713: "host memory not registered", 716: "misaligned address",
         719: "launch failed", 800: "not permitted", 801: "not supported", 900: "capture unsupported", 901: "capture invalidated",
         904: "capture unjoined", 905: "capture isolation", 906: "capture implicit", 907: "captured event",
         908: "capture, wrong thread", 999: "unknown"}
TITLES = [("init", "Before cuInit, and cuInit itself"), ("procaddr", "cuGetProcAddress"), ("noctx", "No current context"),
          ("host", "Registered and pinned host memory"), ("hostreg", "Registering file mappings"),
          ("device", "Device memory and copies"), ("attribute", "Pointer attributes"),
          ("event", "Events, streams, stream memory operations"), ("capture", "Calls beside a capture"),
          ("ctxevent", "cuCtxRecordEvent and cuCtxWaitEvent"), ("context", "Contexts: release, reset, stale handles"),
          ("sticky", "After a kernel fault"), ("vmm", "Address ranges, handles, pools"), ("ipc", "Legacy IPC"),
          ("deadpeer", "The exporter of an interprocess event dies"), ("fork", "In a forked child"), ("waitvalue", "Shared words")]


def esc(s):
    return s.replace("|", "\\|")


def shown(r):
    """The code, or what happened instead of one."""
    def one(v, note):
        if v != -1:
            return str(v)
        for k, t in (("Segmentation", "crash"), ("Bus", "SIGBUS"), ("hang", "never returns")):
            if k in note:
                return t
        return note
    s = one(r["value"], r["note"])
    if "also" in r:
        s += " or " + one(*r["also"])
    return s


def remark(r):
    return "" if r["value"] == -1 and "CPU time" not in r["note"] else r["note"].strip()


def table(head, rows):
    w = [max(len(str(x[i])) for x in [head] + rows) for i in range(len(head))]
    w = [n if n <= 80 and i + 1 < len(w) else 4 for i, n in enumerate(w)]  # long notes would make every line long
    line = lambda x: "| " + " | ".join(str(v).ljust(w[i]) for i, v in enumerate(x)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (n + 2) for n in w) + "|"] + [line(x) for x in rows]) + "\n"


def plain(rows):
    return table(["call", "situation", "code", "what else"], [[esc(r["call"]), esc(r["situation"]), shown(r), esc(remark(r))] for r in rows])


def ordered(seq):
    return list(dict.fromkeys(seq))


def capture(rows):
    def cell(r):
        m = re.match(r"status (\d), end (\d+)", r["note"])
        return f"{r['value']}{'!' if m and m[1] == '2' else ''}" if m else shown(r)
    by = {(r["call"], r["situation"]): cell(r) for r in rows}
    calls = ordered(r["call"] for r in rows)
    cols = [(f"{m} capture, {w} thread", f"{m}, {w} thread") for m in ("global", "thread-local", "relaxed") for w in ("same", "other")]
    cols += [(f"{m} capture, same thread exchanged to relaxed", f"{m}, same thread set to relaxed") for m in ("global", "thread-local")]
    out = "A capture runs on a **non-blocking** stream. `!` means that the call also invalidated the capture: its status is 2 and\n" \
          "cuStreamEndCapture returns 901. Without it the capture goes on and ends with 0.\n\n"
    groups = {}
    for c in calls:
        groups.setdefault(tuple(by.get((c, k), "-") for k, _ in cols), []).append(c)
    out += table(["calls"] + [n for _, n in cols], [[", ".join(v), *k] for k, v in groups.items()])
    bcols = [(f"{m} capture of a blocking stream, {w} thread", f"{m}, {w} thread") for m in ("global", "relaxed") for w in ("same", "other")]
    brow = [[c] + [by.get((c, k), "-") for k, _ in bcols] for c in calls
            if any(by.get((c, k), "-") != by.get((c, k.replace(" of a blocking stream", "")), "-") for k, _ in bcols)]
    if brow:
        out += "\nThe captured stream is a **blocking** one (flags 0): only these calls answer otherwise than above.\n\n" + table(["call"] + [n for _, n in bcols], brow)
    return out


def pivot(rows, split, head):
    """Rows whose situation splits into (column, rest) become one line a (call, rest); the others stay as they are."""
    hit = [(r, split(r["situation"])) for r in rows]
    cols = ordered(s[0] for _, s in hit if s)
    keys = ordered((r["call"], s[1]) for r, s in hit if s)
    by = {(r["call"], s[1], s[0]): r for r, s in hit if s}
    body = []
    for k in keys:
        notes = ordered(remark(by[(*k, c)]) for c in cols if (*k, c) in by)
        note = re.sub(r"^ ?[\d.]+ ms$", "", notes[0]) if len(notes) == 1 else "; ".join(f"{c}: {remark(by[(*k, c)])}" for c in cols if (*k, c) in by and remark(by[(*k, c)]) and not re.match(r"^ ?[\d.]+ ms$", by[(*k, c)]["note"]) and "CPU time" not in by[(*k, c)]["note"])
        body.append([esc(k[0]), esc(k[1])] + [shown(by[(*k, c)]) if (*k, c) in by else "-" for c in cols] + [esc(note)])
    rest = [r for r, s in hit if not s]
    out = table(["call", head] + cols + ["what else"], body) if body else ""
    if not any(b[1] for b in body):
        out = table(["call"] + cols + ["what else"], [[b[0]] + b[2:] for b in body])
    return out + ("\n" + plain(rest) if rest else "")


def hostreg(rows):
    def split(s):
        m = re.match(r"(ext4|tmpfs|memfd|hugetlb): (.*)", s)
        return (m[1], m[2].replace(" (fd O_RDONLY)", "").replace("flags 8,", "flags READ_ONLY,")) if m else None
    return pivot(rows, split, "mapping and situation")


def attribute(rows):
    one = [r for r in rows if r["call"].startswith("cuPointerGetAttribute ") and not r["situation"].startswith("after")]
    rest = [r for r in rows if r not in one]
    attrs, ptrs = ordered(r["call"].split()[1] for r in one), ordered(r["situation"] for r in one)
    by = {(r["situation"], r["call"].split()[1]): r for r in one}
    val = lambda r: f"({r['value']})" if r["value"] else ("id" if r["call"].endswith("BUFFER_ID") else r["note"])
    body = []
    for p in ptrs:
        if all(by[p, a]["value"] == 1 for a in attrs):
            body.append([p, "every attribute: (1), the result is left alone"] + [""] * (len(attrs) - 1))
        else:
            body.append([p] + [val(by[p, a]) for a in attrs])
    out = "cuPointerGetAttribute: the value, or the code in brackets where it is not 0. `=ptr` is the pointer that was asked about.\n\n"
    return out + table(["pointer"] + attrs, body) + "\nThe plural never fails for an unknown pointer: it fills in what it can (\"untouched\" is a result that was not written).\n\n" + plain(rest)


def procaddr(rows):
    groups = {}
    for r in rows:
        m = re.match(r"(.*), version (-?\d+), flags (\d+)$", r["situation"])
        key = (r["call"], m[1], m[3], r["value"], r["note"]) if m else (r["call"], r["situation"], "", r["value"], r["note"])
        groups.setdefault(key, []).append(m[2] if m else "")
    merged = {}  # names that answer alike
    for (call, name, fl, v, n), vers in groups.items():
        merged.setdefault((call, ", ".join(vers), fl, v, n), []).append(f"'{name}'" if name.endswith(" ") else name)
    return table(["call", "name", "versions asked for", "flags", "code", "status; symbol found"],
                 [[k[0], esc(", ".join(v)), k[1], k[2], "crash" if k[3] == -1 else k[3], "" if k[3] == -1 else k[4].replace("status 77", "status left alone")] for k, v in merged.items()])


def ctxevent(rows):
    same, rest = {}, []
    for r in rows:
        if r["situation"].startswith("a stream captures"):
            same.setdefault((r["call"], r["value"], r["note"]), []).append(r)
        else:
            rest.append(r)
    for (c, v, n), rs in same.items():
        rest.append({"call": c, "situation": "beside a capture: " + ("every mode, either thread, also after an exchange to relaxed" if len(rs) == 12 else "; ".join(x["situation"] for x in rs)), "value": v, "note": n})
    return plain(rest)


def main():
    rows = {}
    for f in sys.argv[1:]:
        for line in open(f):
            r = json.loads(line)
            if r["topic"] == "codes":
                rows[r["group"], r["call"], r["situation"]] = r
    print(open(__file__.replace("codes.py", "codes-head.md")).read())
    print(table(["code", "meaning"], [[k, v] for k, v in NAMES.items()]))
    special = {"capture": capture, "hostreg": hostreg, "attribute": attribute, "procaddr": procaddr, "ctxevent": ctxevent,
               "context": lambda rs: pivot(rs, lambda s: (s.split(":")[0], s.partition(":")[2].strip()) if s.startswith("after ") else None, "situation"),
               "fork": lambda rs: pivot(rs, lambda s: (s.replace("in a child forked ", "").replace(": reached", ""), "") if s.startswith("in a child forked") else None, "situation")}
    for g, title in TITLES:
        rs = [r for k, r in rows.items() if k[0] == g]
        if rs:
            print(f"## {title}\n\n" + special.get(g, plain)(rs))
    print(open(__file__.replace("codes.py", "codes-tail.md")).read(), end="")


main()
