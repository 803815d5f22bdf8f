#!/usr/bin/env python3
"""Writes tests/goldens/templates.json: templates rendered by jinja2 as transformers runs it.

  template_goldens.py TEMPLATES_FOLDER > tests/goldens/templates.json
  template_goldens.py TEMPLATES_FOLDER --show NAME CONVERSATION      print one render

TEMPLATES_FOLDER holds the real chat templates that ./build.sh fetches (build/deps/llama.cpp/models/templates). Their licences belong to the models, so
the golden file holds digests of them and of their output. Only the conversations and the small templates are stored as text.
Needs: pip install transformers==5.22.2 jinja2==3.1.6
"""
import datetime
import hashlib
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

NOW = 1767323045  # 2026-01-02 03:04:05 UTC


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedDate

# ---- conversations ---------------------------------------------------------------------------------------------------

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a place.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1}}, "required": ["city"]},
    "return": {"type": "string", "description": "A sentence."}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Search <documents> & \"notes\".",
    "parameters": {"type": "object", "properties": {
        "query": {"type": "array", "items": {"type": "string"}, "description": "Words"},
        "options": {"type": "object", "properties": {"limit": {"type": "number"}, "exact": {"type": "boolean"}}, "required": ["limit"]}},
        "required": ["query", "options"]}}}


def call(name, arguments, id="abcdef123"):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "You are terse.\n  Two lines."}
HELLO = {"role": "user", "content": "Hello, what is 2 < 3 & \"5\"? 你好 😀 "}
ANSWER = {"role": "assistant", "content": " It is true. "}
AGAIN = {"role": "user", "content": "And {{ 3 }}?"}
TOOLS_TURN = [
    {"role": "user", "content": "Weather in Zürich?"},
    {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Zürich", "days": 2})]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"temperature\": 21.5}"}]
THOUGHT = {"role": "assistant", "content": "Four.", "reasoning_content": "2 + 2\n= 4"}

CONVERSATIONS = {
    "one": {"messages": [HELLO], "add_generation_prompt": True},
    "system": {"messages": [SYSTEM, HELLO], "add_generation_prompt": True},
    "turns": {"messages": [SYSTEM, HELLO, ANSWER, AGAIN], "add_generation_prompt": True},
    "complete": {"messages": [HELLO, ANSWER, AGAIN, ANSWER], "add_generation_prompt": False},
    "tools": {"messages": [SYSTEM, HELLO], "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    "tools without system": {"messages": [HELLO], "tools": [WEATHER], "add_generation_prompt": True},
    "tool result": {"messages": [SYSTEM, *TOOLS_TURN], "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    "tool done": {"messages": [*TOOLS_TURN, {"role": "assistant", "content": "21.5 degrees."}, AGAIN], "tools": [WEATHER],
                  "add_generation_prompt": True},
    "arguments as text": {"messages": [
        TOOLS_TURN[0], {"role": "assistant", "content": None, "tool_calls": [call("get_weather", "{\"city\": \"Bern\"}")]}, TOOLS_TURN[2]],
        "tools": [WEATHER], "add_generation_prompt": True},
    "two calls": {"messages": [SYSTEM, TOOLS_TURN[0],
                               {"role": "assistant", "content": "Let me see.", "tool_calls": [
                                   call("get_weather", {"city": "Bern"}, "call00001"),
                                   call("search", {"query": ["a", "b"], "options": {"limit": 1.5, "exact": True}}, "call00002")]},
                               {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "rain"},
                               {"role": "tool", "name": "search", "tool_call_id": "call00002", "content": "nothing"}],
                  "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    "thinking": {"messages": [SYSTEM, HELLO, THOUGHT, AGAIN], "add_generation_prompt": True, "enable_thinking": True, "thinking": True},
    "not thinking": {"messages": [HELLO, THOUGHT, AGAIN], "add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "thought in text": {"messages": [HELLO, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}, AGAIN],
                        "add_generation_prompt": True},
    "thinking with tools": {"messages": [SYSTEM, TOOLS_TURN[0],
                                         {**TOOLS_TURN[1], "reasoning_content": "I need a tool."}, TOOLS_TURN[2], THOUGHT, AGAIN],
                            "tools": [WEATHER], "add_generation_prompt": True, "enable_thinking": True, "reasoning_effort": "high"},
    "parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                           {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "done"}]}],
              "add_generation_prompt": True},
    "developer": {"messages": [{"role": "developer", "content": "Answer in French."}, HELLO], "add_generation_prompt": True},
    "wrong order": {"messages": [ANSWER, HELLO, HELLO], "add_generation_prompt": True},
    "documents": {"messages": [HELLO], "documents": [{"title": "A", "text": "First.", "content": "First."}], "add_generation_prompt": True,
                  "custom_tools": None, "date_string": "26 Jul 2024"},
    "empty": {"messages": [], "add_generation_prompt": True},
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def render(template, conversation):
    arguments = {**TOKENS, **{k: v for k, v in conversation.items() if k != "messages"}}
    try:
        return render_jinja_template([conversation["messages"]], chat_template=template, **arguments)[0][0]
    except Exception as error:
        return error


# ---- small templates -------------------------------------------------------------------------------------------------

VARIABLES = {
    "n": 7, "f": 2.5, "s": "Hello World", "e": "", "u": "Grüße, Ελλάς ΟΔΟΣ ß ǆ 😀", "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "words": ["banana", "Apple", "cherry", "apple"], "d": {"b": 1, "a": 2, "items": 3, "C": [1, {"x": None}]},
    "users": [{"name": "Ann", "age": 31, "tags": {"k": 1}}, {"name": "bob", "age": 25, "tags": {"k": 2}}, {"name": "Cid", "age": 31, "tags": {"k": 3}}],
    "quotes": "it's \"x\" \\ \n\t\u0001 é \u200b", "html": "<b>&'\"</b>", "lines": "a\nb\r\n\nc\x0bd", "nested": [[1, [2, 3]], [4]],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7.5 % -2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
10 / 4
10 / 5
1 / 3
0.1 + 0.2
1e16
1e15
123456789012345.6
1e-4
1e-5
1.5e300 * 1e10
0.0001
100.0
-0.0
5e-324
1_000 + 0x1F + 0b101 + 0o17
1_0.5e1
true + 1
true and 'x'
false or ''
'' or 0 or none
0 and 1
not 1
not not ''
not n == 7
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
1 == 1.0
1 == true
'1' == 1
none == false
'ell' in s
'x' not in s
2 in l
'a' in d
not 'a' in d
5 in (1, 2)
1 in 5
s ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'a']
'a' + 'b'
'a' + 1
'ab' * 3
3 * 'ab'
[1] * 2 + [2]
(1,) + (2, 3)
[1] + (2,)
'%s is %d and %5.2f|%-5s|%05d|%x|%%' % ('a', 3, 2.5, 'b', 42, 255)
'%s' % 'x'
'%s' % [1, 2]
'%(a)s-%(b)d' % {'a': 1, 'b': 2}
'%s %s' % ('a',)
'%r' % 'x'
'%d' % 3.7
'%e' % 12345.678
'%+d % d' % (3, 4)
n if t
n if no
(n if no) is undefined
n if no else 'else'
1 if no else 2 if no else 3
none
None
True
[none, true, 1.5, 'a', "b'c", 'd"e', '"\'', undefinedthing]
{'a': [1, 2.0, none], 'b': {'c': "it's"}, 1: (1,), none: ()}
(1)
(1,)
()
1, 2
[]
{}
quotes
[quotes]
u
[u]
html
'\n\t\\\'"\x41\u00e9\U0001F600\q\101'
'a' 'b' "c"
missing
missing.attr
missing['x']
missing()
missing + 1
missing | length
missing == missing2
missing | default('d')
missing.x | default('d')
d.missing
d.missing.x
d['b'] + d.b
d.items
d['items']
d.items() | list
d.C[1].x
d.C.0
d.keys()
d.values() | list
d.items()
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get(key='a')
d.pop('a')
d.update({'x': 1})
d.__class__
s.__class__.__mro__
l.append(4)
l.append
l[0]
l[-1]
l[5]
l['x']
l[1:]
l[:-1]
l[::-1]
l[::2]
l[5:1:-2]
l[-2:]
l[none:2]
s[0]
s[-1]
s[2:5]
s[::-1]
u[1:4]
u[-1]
u[::-1]
s[100]
s[100:]
(1, 2, 3)[1:]
range(5) | list
range(2, 10, 3) | list
range(5, 0, -2) | list
range(3)
range(0, 10, 2)
range(5)[1]
range(5)[-1]
range(200000)
range(1, 2, 0)
n.x
none.x
none[0]
n[0]
l.count(1)
l.index(2)
l.index(9)
(1, 2, 2).count(2)
s.upper()
s.lower()
s.title()
s.capitalize()
u.upper()
u.lower()
u.title()
u.capitalize()
"they're bill's x-y".title()
"they're bill's x-y" | title
'  a b '.strip()
'  a b '.lstrip() ~ '|'
'  a b '.rstrip() ~ '|'
'xxaxx'.strip('x')
'abcba'.lstrip('ab')
'abcba'.rstrip('ab')
'\u00a0\u3000a\u2028'.strip()
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
' a  b c '.rsplit()
''.split()
''.split(',')
'abc'.split('')
'abc'.split(sep='b', maxsplit=1)
lines.splitlines()
lines.splitlines(true)
''.splitlines()
'aaa'.replace('a', 'b')
'aaa'.replace('a', 'b', 2)
'abc'.replace('', '-')
'éa'.replace('', '-', 2)
s.startswith('Hell')
s.startswith(('x', 'He'))
s.endswith('ld')
s.endswith('x')
s.startswith('W', 6)
s.find('o')
s.rfind('o')
s.find('zz')
s.index('zz')
u.find('Ε')
s.find('o', 5)
s.count('l')
s.count('')
'aaaa'.count('aa')
', '.join(['a', 'b'])
', '.join([1])
'-'.join('abc')
'{} {}'.format(1, 'a')
'{1} {0} {x}'.format(1, 'a', x=2.5)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d} {:x} {:,} {:.2f} {:e} {:%}'.format(42, 255, 1234567, 3.14159, 1234.5, 0.25)
'{0.x} {0[x]}'.format({'x': 1})
'{!r:>6}'.format('a')
'{{}} {}'.format([1])
'{} {}'.format(1)
'{'.format(1)
'{:d}'.format('a')
'abc'.removeprefix('a').removesuffix('c')
'abc'.partition('b')
'abc'.rpartition('x')
'a'.center(5) ~ '|'
'ab'.center(5, '*')
'a'.ljust(3, '.') ~ 'a'.rjust(3)
'-42'.zfill(6)
'abc'.isalpha()
'12'.isdigit()
'a1'.isalnum()
' '.isspace()
'aB'.islower()
'AB'.isupper()
s | upper
s | lower
'hELLO wORLD' | capitalize
'hello wORLD' | title
s | length
u | length
l | length
d | length
n | length
none | length
l | first
l | last
[] | first
s | first
s | last
'abc' | list
d | list
d | first
l | join
l | join(', ')
users | join(', ', attribute='name')
none | join
n | string
none | string
f | string + 'x'
n | string ~ 'x'
'x' | string is string
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(true)
users | sort(attribute='age') | map(attribute='name') | join(',')
users | sort(attribute='age,name', reverse=true) | map(attribute='name') | join(',')
[1, 'a'] | sort
words | unique | list
words | unique(case_sensitive=true) | list
users | unique(attribute='age') | map(attribute='name') | list
l | min
l | max
words | min
words | max(case_sensitive=true)
[] | max
users | max(attribute='age')
l | sum
users | sum(attribute='age')
users | sum('age', 100)
[1.5, 2] | sum
l | reverse | list
s | reverse
d | dictsort
d | dictsort(true)
{'b': 1, 'a': 2} | dictsort(by='value')
{'b': 1, 'a': 2} | dictsort(false, 'value', true)
d | dictsort(by='x')
d | items | list
missing | items | list
l | items
users | map(attribute='name') | list
users | map(attribute='tags.k') | list
users | map(attribute='zip', default='?') | list
users | map(attribute='zip') | list
words | map('upper') | list
words | map('replace', 'a', 'o') | join(' ')
words | map('nofilter') | list
users | selectattr('age', 'equalto', 31) | map(attribute='name') | list
users | selectattr('age', '>', 30) | list | length
users | rejectattr('age', 'eq', 31) | map(attribute='name') | list
users | selectattr('name') | list | length
l | select('odd') | list
l | reject('odd') | list
[0, 1, '', 'a', none] | select | list
l | select('greaterthan', 1) | list
[1, none, 2] | select('none') | list
l | select('divisibleby', 2) | list
(l | select('odd')) is sequence
(l | select('odd')) | length
l | map('string') | first
'5' | int
'5.7' | int
'x' | int
'x' | int(3)
'0x1A' | int(0, 16)
'ff' | int(base=16)
' 42 ' | int
'1_000' | int
5.9 | int
-5.9 | int
none | int
true | int
[] | int(9)
'2.5' | float
'x' | float
'1e3' | float
3 | float
'inf' | float
'nan' | float
-5 | abs
-5.5 | abs
2.5 | round
3.5 | round
2.675 | round(2)
2.567 | round(1, 'floor')
2.123 | round(1, 'ceil')
42 | round
-2.5 | round
1234.5 | round(-2)
'  x ' | trim ~ '|'
'xxaxx' | trim('x')
n | trim
html | escape
html | e
html | safe
(html | safe) + '<i>'
'<i>' + (html | safe)
(html | safe) ~ '<i>'
(html | safe).replace('b', '<')
html | forceescape
(html | escape) | escape
'a b' | replace(' ', '_')
'aaa' | replace('a', 'b', 2)
123 | replace(2, 'x')
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('>>')
'a\n' | indent
'' | indent
'x' | center(7) ~ '|'
'foo bar baz qux' | truncate(9)
'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(11)
'foo bar baz qux' | truncate(9, false, '…', 0)
'%s-%s' | format('a', 1)
'%(x)s' | format(x=5)
l | batch(2) | list
l | batch(2, 0) | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
users | groupby('age')
users | groupby('age') | map('first') | list
words | groupby(0)
d | tojson
d | tojson(indent=2)
d | tojson(indent=0)
[] | tojson(indent=2)
{} | tojson(indent=2)
quotes | tojson
u | tojson
u | tojson(ensure_ascii=true)
html | tojson
{'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true)
{'b': [1, 2]} | tojson(separators=(',', ':'))
{1: 1, 1.5: 2, none: 3, true: 4} | tojson
[1.0, 1e100, -0.0, 1e22, 12345678.9] | tojson
(1, 2) | tojson
missing | tojson
range(3) | tojson
d.items() | tojson
'inf' | float | tojson
nested | tojson(indent='\t')
none | default('x')
none | default('x', true)
'' | d('x', boolean=true)
'' | d('x')
missing | d
d | attr('items') is callable
d | attr('a')
s | nofilter
s is notest
n is defined
missing is defined
missing is not defined
missing is undefined
nil is none
nil is not none
missing is none
n is number
f is number
t is number
s is number
n is integer
t is integer
f is float
n is float
t is boolean
n is boolean
t is true
1 is true
no is false
0 is false
s is string
n is string
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
missing is sequence
l is iterable
s is iterable
n is iterable
none is iterable
missing is iterable
d.items is callable
s is callable
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(7)
n is ne 7
n is gt 3
n is lt(3)
n is ge 7
n is le 6
n is sameas 7
1 is sameas true
'a' is in 'abc'
2 is in l
2 is in(l)
'ABC' is upper
'abc' is lower
'upper' is filter
'nope' is filter
'odd' is test
(html | safe) is escaped
n is not odd and t
n is odd or no
n is defined and n is number
dict(a=1, b='x')
dict([('a', 1), ('b', 2)])
dict({'a': 1}, b=2)
namespace(a=1).a
namespace(a=1)
namespace(a=1).b
namespace(_a=1)
raise_exception('no!')
strftime_now('%Y-%m-%d %H:%M:%S %d %b %Y %A %j')
l | length > 2 and 'yes'
(l | length) * 2
l | join(',') ~ '!'
-l | length
-5 | abs
2 * 3 | string
'a' ~ 1 + 2
1 ~ 2 * 3
[1, 2, 3,]
{'a': 1,}
[x for x in l]
a.b.
1 +
(1
l[
"unclosed
{'a' 1}
1 is
n is odd is even
foo(*[1, 2])
dict(**{'a': 1})
range(*[1, 4]) | list
'{} {}'.format(*['a', 'b'])
nested[0][1][0]
(nested | first)[1] | last
users[0]['name'][0]
users[-1].tags.k
s.split(' ')[1][::-1] | upper
{'a': 1}['a']
{'a': {'b': 2}}.a.b
[1, 2, 3][1]
'abc'[1]
('a' if t else 'b') + 'c'
t and no or 'z'
n == 7 and f == 2.5
9223372036854775807
1 / 0
1 % 0
1 // 0
1.0 / 0
'a' - 'b'
-'a'
+5
+'a'
1 < 'a'
none < 1
missing < 1
1.0 == 1
0.1 + 0.2 == 0.3
1e308 * 10
-1e308 * 10
3.0
3.14
1234567.0
12345678901234567890.0
1e22
1.7976931348623157e308
f * 2
f ** 2
4 ** 0.5
n // f
n % f
n[:1]
d[1:]
n | truncate(4)
l | truncate(4)
(html | safe).split('b')
(html | safe).partition('b')
'x' % l
'x' % (1,)
10 ** 1e20
(1, 2).copy()
l.copy()
u.isalpha()
'Ünï²½'.isalnum()
'²'.isdigit() ~ '²'.isdecimal() ~ '½'.isnumeric()
""".strip("\n").split("\n")

STATEMENTS = [
    "a\n", "a\n\n", "\n", "", " \n a", "a\r\nb\rc", "{{ 1 }}\n{{ 2 }}\n",
    "{% if t %}\nyes\n{% endif %}\nend", "  {% if t %}  \n  yes\n  {% endif %}\nend", "x {% if t %} y {% endif %} z",
    "  {%- if t %} y {%- endif %} z", "a {%- if t -%} \n\n b {% endif -%}  \n c", "  {%+ if t %}y{% endif %}", "{% if t +%}\ny{% endif %}",
    "a\n  {{ 1 }}\n  {{- 2 -}}  \n b", "a  {#- c -#}  b", "a\n  {# c #}\nb", "a {# c #} b", "{# {{ 1 }} #}x", "{#- a -#}\n\nb", "{#+ x +#}\nb",
    "{% raw %}{{ x }}{% endraw %}", "  {% raw %}\n {{ x }} {% y %}\n  {% endraw %}\nz", "{%- raw -%}  {{ a }}  {%- endraw -%}  z", "{% raw %}", "{% raw %}a{% endraw +%}\nb",
    "\t{% if t %}\n\ta\n\t{% endif %}", "{% if t %}{% if no %}a{% else %}b{% endif %}{% endif %}",
    "{% if no %}a{% elif t %}b{% elif t %}c{% else %}d{% endif %}", "{% if no %}a{% elif no %}b{% else %}d{% endif %}",
    "{% if no %}1{% else %}{% if t %}2{% endif %}3{% endif %}", "{% if missing %}a{% endif %}b", "{% if a %}", "{% endif %}", "{% if %}a{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l %}a{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{% for x in missing %}a{% endfor %}b", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]], [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }};{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}",
    "{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}", "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% for x in l %}{% endfor %}{% continue %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for x in l|sort %}{{ x }}{% endfor %}", "{% for x in (l|select('odd')) %}{{ x }}{% endfor %}",
    "{% set g = l|select('odd') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}", "{% set g = l|map('string') %}{{ g|first }}{{ g|list }}{{ g|list }}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% for i in l %}{% set y = i %}{% endfor %}{{ y }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% if no %}{% set x = 2 %}{% endif %}{{ x }}", "{% set n = n + 1 %}{{ n }}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = [3, 4] %}{{ a }}{{ b }}", "{% set ns = namespace() %}{% set ns.a, x = 1, 2 %}{{ ns.a }}{{ x }}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% set x %}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | trim | upper %} abc {% endset %}[{{ x }}]", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% set ns = namespace() %}{% set ns.v %}q{% endset %}{{ ns.v }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=4) }} {{ m(b=1, a=2) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(1) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(x=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{% set q = 1 %}{% endmacro %}{{ m() }}{{ q }}", "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a') + m('b') | length | string }}", "{% macro m() %}  a  {% endmacro %}[{{ m()|trim }}]", "{{ m() }}{% macro m() %}a{% endmacro %}",
    "{% macro m(a, b) %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ n }}{% endcall %}", "{% macro m() %}<{{ caller(1, 'b') }}>{% endmacro %}{% call(x, y) m() %}{{ x }}{{ y }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}{% call m() %}in{% endcall %}", "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(a=3) %}{% set z = 1 %}{{ z }}{% endcall %}{{ z }}",
    "{% filter upper %}a{{ s }}b{% endfilter %}", "{% filter replace('a', 'b') | upper %}aca{% endfilter %}", "{% filter nofilter %}a{% endfilter %}", "{% filter trim %} a {% endfilter %}|",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% generation %}a{{ n }}{% endgeneration %}", "  {% generation %}\n a\n  {% endgeneration %}\nb", "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% if no %}{{ s | nofilter }}{% endif %}ok", "{{ 1 if t else (s | nofilter) }}", "{% for x in [] %}{{ x | nofilter }}{% endfor %}", "{% if t %}{{ s | nofilter }}{% endif %}", "{% if no %}{% for x in l %}{{ x | nofilter }}{% endfor %}{% endif %}", "{% macro m() %}{{ 1 is notest }}{% endmacro %}",
    "{% unknown %}", "{% do l.append(1) %}", "{{ }}", "{{", "{%", "{#", "{{ 1", "{% if t", "{{ 1 }", "{{ 'a }}", "}}", "%}", "{ {", "{{ '}}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': 1}}}", "{{ \"%}\" }}{% set x = '%}' %}{{ x }}",
    "{{ 1 }}{{ 2 -}} \n {{- 3 }}", "a{% set x = 1 %}\nb", "a\n{% set x = 1 %}\n\nb", "{% set x = 1 -%}\n\nb", "a\n\n  {%- set x = 1 %}\nb", "{{+ 1 }}", "  {{+ 1 }}", " {%- if t +%}\n x{% endif %}",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend", "<{% for x in l %}\n\n{{ x }}\n\n{% endfor %}>", "{% if t: %}a{% endif %}", "\u00a0{% if t %}a{% endif %}", "a\u2028  {% if t %}b{% endif %}",
    "{% set x = [1, 2,\n 3] %}{{ x }}", "{{ 'a\nb' }}", "{{ '\\\n' }}", "{{ 1, }}", "{{ l\n | join(\n ',' ) }}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}", "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set messages = users %}{{ messages[0].name }}{{ messages[1:] | map(attribute='name') | list }}", "{% for m in users[::-1] %}{{ m.name }}{% endfor %}", "{%- for m in users %}\n{{- m['name'] + '\\n' }}\n{%- endfor %}", "{% set content = users[0]['name'] | trim + '!' %}{{ content }}",
    "{% set x = {'a': 1} %}{% set y = dict(x, b=2) %}{{ x }}{{ y }}", "{% set x = [] %}{% set x = x + [1] %}{{ x }}", "{% for x in [1, 2, 3] %}{% if loop.first %}{% set q = x %}{% endif %}{{ q }}{% endfor %}", "{% for x in 'ab' %}{% for y in 'cd' %}{{ x ~ y }}{{ loop.last }}{% endfor %}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% else %}x{% endfor %}", "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}", "{% for i in range(2) %}{% set i = i + 10 %}{{ i }}{% endfor %}", "{% for a in l %}{{ a }}{% endfor %}{{ a }}{{ loop }}", "{{ range }}", "{{ s.upper }}",
    "{% macro a() %}{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}!{% endmacro %}{{ a() }}", "{% for x in l %}{% set y %}{{ x }}{% endset %}{{ y }}{% endfor %}", "{{ caller }}", "{{ self }}", "{{ varargs }}", "{% macro m(l) %}{{ l }}{% endmacro %}{{ m(l=[1]) }}{{ l }}",
]


def small_cases():
    for text in [f"{{{{ {expression} }}}}" for expression in EXPRESSIONS] + STATEMENTS:
        try:
            template = chat_template_utils._compile_jinja_template(text)
            out = template.render(**json.loads(json.dumps(VARIABLES)))
        except Exception:
            out = None
        if out is not None and " at 0x" in out:
            continue
        if out is not None and (out.startswith("<built-in") or out.startswith("<class") or "<TemplateReference" in out or "<function" in out):
            continue
        yield [text, out]


def main():
    folder = pathlib.Path(sys.argv[1])
    if "--show" in sys.argv:
        name, conversation = sys.argv[-2:]
        out = render((folder / name).read_bytes().decode(), CONVERSATIONS[conversation])
        if isinstance(out, Exception):
            sys.exit(f"{type(out).__name__}: {out}")
        sys.stdout.buffer.write(out.encode())
        return
    real = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes()
        renders = {}
        for name, conversation in CONVERSATIONS.items():
            out = render(source.decode(), conversation)
            renders[name] = None if isinstance(out, Exception) else hashlib.sha256(out.encode()).hexdigest()[:32]
        real[path.name] = {"sha256": hashlib.sha256(source).hexdigest(), "renders": renders}
    small = list(small_cases())
    lines = lambda items: ",\n  ".join(items)
    dump = lambda value: json.dumps(value, ensure_ascii=False)
    print("{\n\"made_by\": \"tests/parity/template_goldens.py\",\n\"now\": %d,\n\"tokens\": %s,\n\"variables\": %s," % (NOW, dump(TOKENS), dump(VARIABLES)))
    print("\"small\": [\n  %s],\n\"conversations\": {\n  %s},\n\"real\": {\n  %s}\n}" % (
        lines(map(dump, small)), lines(f"{dump(k)}: {dump(v)}" for k, v in CONVERSATIONS.items()),
        lines(f"{dump(k)}: {dump(v)}" for k, v in real.items())))
    errors = sum(out is None for _, out in small)
    rendered = sum(digest is not None for entry in real.values() for digest in entry["renders"].values())
    print(f"{len(small)} small templates ({errors} errors), {len(real)} real ones, {rendered} of {len(real) * len(CONVERSATIONS)} renders",
          file=sys.stderr)


main()
