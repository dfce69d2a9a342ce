# A program that parses, sorts and computes until it is killed.
import decimal
import json
import re

while True:
    data = json.loads(json.dumps([{"a": [i, str(i)]} for i in range(50)]))
    sorted(data, key=lambda each: decimal.Decimal(each["a"][1]).sqrt())
    re.sub("[0-9]+", lambda found: found.group() * 2, json.dumps(data))
