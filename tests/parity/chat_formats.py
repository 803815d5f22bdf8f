#!/usr/bin/env python3
"""Writes tests/goldens/chat_formats.json: the built-in chat formats of mlxcel, rendered by jinja2 as transformers runs it.

  chat_formats.py MLXCEL MODEL > tests/goldens/chat_formats.json

MLXCEL is the binary; it prints the template of each format. MODEL is any model. Needs: pip install transformers==5.22.2 jinja2==3.1.6
"""
import json
import subprocess
import sys

from transformers.utils.chat_template_utils import render_jinja_template

NAMES = ["chatml", "deepseek2", "gemma", "llama2", "llama3", "mistral", "phi3", "vicuna", "zephyr"]
TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
SYSTEM = {"role": "system", "content": "Be terse.\n"}
ASK = {"role": "user", "content": " What is 2 < 3 & \"5\"? 你好 😀 "}
ANSWER = {"role": "assistant", "content": " True.\n\nI think. "}
AGAIN = {"role": "user", "content": "And {{ 3 }}?"}
CONVERSATIONS = [
    {"messages": [ASK], "add_generation_prompt": True},
    {"messages": [SYSTEM, ASK], "add_generation_prompt": True},
    {"messages": [SYSTEM, ASK, ANSWER, AGAIN], "add_generation_prompt": True},
    {"messages": [ASK, ANSWER, AGAIN, ANSWER, ASK], "add_generation_prompt": True},
    {"messages": [SYSTEM, ASK, ANSWER], "add_generation_prompt": False},
]


def render(source, conversation):
    texts, _ = render_jinja_template([conversation["messages"]], chat_template=source,
                                     add_generation_prompt=conversation["add_generation_prompt"], **TOKENS)
    return texts[0]


formats = []
for name in NAMES:
    source = subprocess.run([sys.argv[1], "template", "-m", sys.argv[2], "--chat-template", name, "--show"], check=True,
                            capture_output=True).stdout.decode()
    formats.append({"name": name, "source": source, "texts": [render(source, c) for c in CONVERSATIONS]})
json.dump({"tokens": TOKENS, "conversations": CONVERSATIONS, "formats": formats}, sys.stdout, ensure_ascii=False, indent=1)
print()
