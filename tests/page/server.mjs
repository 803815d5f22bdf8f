// Runs `mlxcel serve` with a real model for the tests of the chat page.
import {spawn} from 'node:child_process';

// Starts the server on a free port. |url| ends with a slash.
export async function startServer(mlxcel, model, ...flags) {
  const child = spawn(mlxcel, ['serve', '-m', model, '--port', '0', '--device', 'cpu', '-c', '2048', ...flags], {stdio: ['ignore', 'pipe', 'pipe']});
  let log = '';
  const url = await new Promise((done, fail) => {
    const read = data => {
      log += data;
      const found = /listening on (http:\/\/[^ ]*)/.exec(log);
      if (found) done(`${found[1].replace(/\/$/, '')}/`);
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.on('exit', status => fail(new Error(`the server ended with status ${status}:\n${log}`)));
  });
  return {
    url,
    // The value of a metric without labels.
    async metric(name) {
      const text = await (await fetch(`${url}metrics`)).text();
      return Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)[1]);
    },
    // Ends the server and returns its exit status.
    stop() {
      const ended = new Promise(done => child.on('exit', done));
      child.kill('SIGTERM');
      return ended;
    },
  };
}
