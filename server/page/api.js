// The server's API, as far as this page uses it.

// |status| is that of HTTP, or 0 if the server did not answer, or stopped doing so.
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const headers = key => ({'Content-Type': 'application/json', ...(key ? {Authorization: `Bearer ${key}`} : {})});

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server does not answer.', 0);
  }
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON */ }
  throw new ApiError(message, response.status);
}

export const getJson = async (path, key) => (await request(path, {headers: headers(key)})).json();
export const isAlive = () => fetch('health').then(() => true, () => false);

// The data of each server-sent event, until the stream ends.
async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      rest += decoder.decode(value, {stream: true});
      const frames = rest.split(/\r?\n\r?\n/);
      rest = frames.pop();
      for (const frame of frames) {
        const data = frame.split(/\r?\n/).filter(line => line.startsWith('data:')).map(line => line.slice(5).trimStart()).join('\n');
        if (data) yield data;
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The connection to the server was lost.', 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

const post = (body, key, signal) => request('v1/chat/completions', {method: 'POST', headers: headers(key), body: JSON.stringify(body), signal});

// Streams a chat completion. |on| gets {reasoning, text, calls} deltas, then {usage, timings, finish}.
export async function streamChat(body, key, signal, on) {
  const response = await post({...body, stream: true, stream_options: {include_usage: true}}, key, signal);
  for await (const data of events(response.body)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 500);
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    on({text: delta.content ?? '', calls: delta.tool_calls ?? [], reasoning: delta.reasoning_content ?? delta.reasoning ?? '', finish: choice?.finish_reason,
        usage: chunk.usage, timings: chunk.timings});
  }
  throw new ApiError('The connection ended before the answer was complete.', 0);
}

export async function completeChat(body, key, signal) {
  return (await (await post(body, key, signal)).json()).choices?.[0]?.message?.content ?? '';
}
