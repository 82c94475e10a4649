// A stand-in for onnxruntime-web in the tests: the parts of its interface that the package uses, run by ONNX Runtime in
// Python (tests/python/languages/ort_server.py). Tensors go both ways as safetensors.
import { readSafetensors, writeSafetensors } from '../tensors.js';

export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims, location: 'cpu' });
  }
  async getData() {
    return this.data;
  }
  dispose() {}
}

async function post(path, body) {
  const answer = await fetch(new URL(path, import.meta.url), { method: 'POST', body });
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

export const InferenceSession = {
  async create(model) {
    const { id } = await (await post('/ort/create', model)).json();
    return {
      async run(feeds) {
        const answer = await post(`/ort/run/${id}`, writeSafetensors(feeds));
        const results = readSafetensors(await answer.arrayBuffer());
        return Object.fromEntries(Object.entries(results).map(([name, { type, data, dims }]) => [name, new Tensor(type, data, dims)]));
      },
      async release() {
        await post(`/ort/release/${id}`);
      },
    };
  },
};
