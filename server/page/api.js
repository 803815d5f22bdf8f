// The server's API, as far as this page uses it.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const headers = key => ({'Content-Type': 'application/json', ...(key ? {Authorization: `Bearer ${key}`} : {})});

async function check(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON */ }
  throw new ApiError(message, response.status);
}

export async function getJson(path, key) {
  return (await check(await fetch(path, {headers: headers(key)}))).json();
}

// The data of each server-sent event, until the stream ends.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      rest += value;
      const frames = rest.split(/\r?\n\r?\n/);
      rest = frames.pop();
      for (const frame of frames) {
        const data = frame.split(/\r?\n/).filter(line => line.startsWith('data:')).map(line => line.slice(5).trimStart()).join('\n');
        if (data) yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Streams a chat completion. |on| gets {reasoning, text} deltas, then {usage, timings, finish}.
export async function streamChat(request, key, signal, on) {
  const body = JSON.stringify({...request, stream: true, stream_options: {include_usage: true}});
  const response = await check(await fetch('v1/chat/completions', {method: 'POST', headers: headers(key), body, signal}));
  let finished = false;
  for await (const data of events(response.body)) {
    if (data === '[DONE]') {
      finished = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 500);
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const calls = (delta.tool_calls ?? []).map(call => call.function?.arguments ?? '').join('');
    on({text: (delta.content ?? '') + calls, reasoning: delta.reasoning_content ?? delta.reasoning ?? '', finish: choice?.finish_reason,
        usage: chunk.usage, timings: chunk.timings});
  }
  if (!finished) throw new ApiError('the connection ended before the answer was complete', 0);
}
