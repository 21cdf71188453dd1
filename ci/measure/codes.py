# Makes ci/driver-answers.tsv of one or more results.jsonl: `codes.py FILE... > ci/driver-answers.tsv`. Later files win.
import json, sys

HEAD = """# What the CUDA driver answers in situations that its manual leaves open: say here which device, driver and day.
# Rows of one group mostly ran in the order given, in one process: a row may depend on the row above it.
# answer: the driver's result code; "crash" is a segmentation fault in the driver, "never returns" was stopped by a timer.
group\tcall\tsituation\tanswer\tnote"""
NO_CODE = {"Segmentation": "crash", "Bus": "SIGBUS", "hang": "never returns"}


def answer(value, note):
    """The code, or what happened instead of one."""
    if value != -1:
        return str(value)
    return next((text for word, text in NO_CODE.items() if word in note), note)


rows = {}
for name in sys.argv[1:]:
    for line in open(name):
        row = json.loads(line)
        if row["topic"] == "codes":
            rows[row["group"], row["call"], row["situation"]] = row
print(HEAD)
for (group, call, situation), row in rows.items():
    answers = [answer(row["value"], row["note"])] + ([answer(*row["also"])] if "also" in row else [])
    note = "" if row["value"] == -1 else row["note"].strip()
    print(group, call, situation, " or ".join(answers), note, sep="\t")
