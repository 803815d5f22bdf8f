#!/usr/bin/env python3
"""Compares random templates with jinja2 as transformers runs it. Expressions and statements are drawn from Jinja's grammar.

  template_random.py COUNT SEED > random.json
  MLXCEL_TEMPLATE_GOLDENS=random.json build/tests/template_test small_templates_render_as_jinja2_renders_them

Left out, because they differ on purpose or by jinja2's constant folding: integers over 64 bits, powers, slices of values without items,
unknown filters, context names that a template sets after using them in an inner scope, the text of functions and generators. Needs: pip install transformers==5.22.2 jinja2==3.1.6
"""
import json
import pathlib
import random
import sys

count, seed = int(sys.argv[1]), int(sys.argv[2])
goldens = json.loads((pathlib.Path(__file__).parent.parent / "goldens/templates.json").read_text())
VARIABLES = goldens["variables"]
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template  # noqa: E402

dice = random.Random(seed)
NAMES = [*VARIABLES, "missing"]
ATOMS = """'a' 'Hello' '' '\\tx\\t' 'ÄÖß' 'a,b,c' "it's" '1.5' '12' '{}-{}' '%s:%s' '\\n' 'aXbX' 1.5 0.0 -2.25 3.0 true false none [] {} () [1,2] {'a':1}
(1,'a')""".split()
FILTERS = """upper lower title capitalize trim length first last list string int float abs round sort unique|list reverse|list join(',') default('d')
default('d',true) tojson tojson(indent=2) escape e sum min max dictsort items|list replace('a','b') indent(2) indent(width=1,first=true) truncate(4)
truncate(5,true) center(9) batch(2)|list slice(2)|list map('string')|list map('upper')|join('-') select|list reject|list select('string')|list
map(attribute='name')|list selectattr('name')|list sort(reverse=true) max(attribute='age') groupby('age') count safe forceescape format(1) trim('a')
round(1) int(7) float(1.5) d attr('x')""".split()
TESTS = """defined undefined none string number integer float boolean true false mapping sequence iterable callable odd even divisibleby(2) eq(1)
ne('a') gt(0) in([1,'a']) upper lower sameas(none) escaped lt(3)""".split()
MEMBERS = """upper() lower() title() capitalize() strip() lstrip() rstrip('d') split() split(',') split('l',1) rsplit('l',1) rsplit(None,1) splitlines()
replace('l','L') startswith('H') endswith('d') find('l') rfind('l') count('l') index('a') join(['x','y']) format(1,2) format('a',b=2) zfill(5) center(7)
center(8,'*') ljust(4) partition(',') rpartition('l') removeprefix('a') isdigit() isupper() islower() isspace() isalpha() isalnum() items()
keys()|list values()|list get('a') get('q',1) copy() count(1) index(1) append(1) pop() name age a b items x""".split()
OPERATORS = "+ - * / // % ~ == != < > <= >= in and or".split() + ["not in"]


def expression(depth):
    inner = lambda: expression(depth - 1)
    if depth <= 0:
        return dice.choice([dice.choice(NAMES), dice.choice(ATOMS), str(dice.randint(-5, 12))])
    return dice.choice([
        lambda: f"{inner()} {dice.choice(OPERATORS)} {inner()}", lambda: f"{inner()} {dice.choice(OPERATORS)} {inner()}", lambda: f"({inner()})",
        lambda: f"{inner()} | {dice.choice(FILTERS)}", lambda: f"{inner()} | {dice.choice(FILTERS)}", lambda: f"{inner()} | {dice.choice(FILTERS)}",
        lambda: f"{inner()} is {dice.choice(['', 'not '])}{dice.choice(TESTS)}", lambda: f"({inner()}).{dice.choice(MEMBERS)}",
        lambda: f"({inner()}).{dice.choice(MEMBERS)}", lambda: f"({inner()})[{dice.choice(['0', '1', '-1', chr(39) + 'a' + chr(39), inner()])}]",
        lambda: f"{inner()} if {inner()} else {inner()}", lambda: f"[{inner()}, {inner()}]", lambda: f"{{{dice.choice(['1', '2.5', 'none', chr(39) + 'k' + chr(39)])}: {inner()}}}",
        lambda: f"not {inner()}", lambda: f"-{inner()}", lambda: f"{dice.choice(['l', 's', 'u', 'words'])}[{dice.randint(-4, 4)}:{dice.randint(-4, 4)}:{dice.choice([1, 2, -1])}]",
    ])()


space = lambda: dice.choice(["", " ", "\n", "  ", "\n  ", "  \n", "\n\n", "x", "\t"])
sign = lambda: dice.choice(["", "", "-", "+"])
tag = lambda text: "{%" + sign() + f" {text} " + sign() + "%}"


def statement(depth):
    inner = lambda: statement(depth - 1)
    if depth <= 0:
        return space() + "{{" + dice.choice(["", "-"]) + f" {expression(1)} " + dice.choice(["", "-"]) + "}}" + space()
    return space() + dice.choice([
        lambda: statement(0), lambda: tag("if " + expression(1)) + inner() + tag("else") + inner() + tag("endif"),
        lambda: tag("for x in " + expression(1)) + space() + "{{ x }}{{ loop.index }}" + inner() + tag("endfor"),
        lambda: tag(f"set x = {expression(1)}") + space() + "{{ x }}",
        lambda: tag("set y") + inner() + tag("endset") + "{{ y }}",
        lambda: tag("macro m(a, n=2)") + inner() + "{{ a }}" + tag("endmacro") + "{{ m(1) }}{{ m(%s, n=%s) }}" % (expression(0), expression(0)),
        lambda: "{#" + sign() + " c " + sign() + "#}" + inner(), lambda: inner() + inner(),
    ])() + space()


def outcome(text):
    try:
        return compile_template(text).render(**json.loads(json.dumps(VARIABLES)))
    except Exception:
        return None


small = []
while len(small) < count:
    text = "{{ %s }}" % expression(dice.randint(1, 3)) if dice.random() < 0.6 else statement(3)
    out = outcome(text)
    if out is None or not any(part in out for part in (" at 0x", "<built-in", "Undefined", "<Macro")):
        small.append([text, out])
print(json.dumps({**goldens, "small": small, "real": {}}, ensure_ascii=False))
