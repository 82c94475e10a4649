// Trains on digits, stops in the middle, goes on to the bit where it stopped, exports, and predicts.
//   node digits.js MODEL.onnx TRAIN.npz TEST.npz FOLDER
'use strict';
const { Dataset, Model, Session } = require('..');

async function fit(session, path, folder, callbacks, more) {
  const data = await Dataset.open(path, session);
  const options = { epochs: 3, batchSize: 32, lr: 0.003, seed: 1, out: folder, ...more };
  console.log(await session.fit(data, options, callbacks));
  data.close();
}

async function accuracy(path, test) {
  const inference = await Model.load(path);
  const session = await Session.create(inference);
  const labels = (await Dataset.open(test)).tensors().find(({ name }) => name === 'labels').data;
  const logits = (await session.predict(await Dataset.open(test, session))).get('logits').data;  // the session's memory
  let right = 0;
  labels.forEach((label, i) => {
    const row = logits.subarray(10 * i, 10 * i + 10);
    if (row.indexOf(Math.max(...row)) === Number(label)) right += 1;
  });
  session.close();
  return right / labels.length;
}

async function main([path, train, test, folder]) {
  const forward = await Model.load(path);
  const training = await forward.build({ loss: 'cross_entropy', optimizer: 'adamw' });
  const [whole, first, second] = [await Session.create(training), await Session.create(training), await Session.create(training)];
  await fit(whole, train, `${folder}/whole`);
  // The same in two parts: after 70 steps the first one ends, and another session goes on from its files.
  await fit(first, train, `${folder}/parts`, { onStep: ({ step }) => (step === 70 ? 'interrupt' : 'continue') });
  await fit(second, train, `${folder}/parts`, { onNote: console.log }, { resume: true });
  const bytes = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  for (const name of whole.states) {
    if (!bytes(whole.data(name)).equals(bytes(second.data(name)))) throw new Error(`state '${name}' differs`);
  }
  console.log(`${whole.states.length} states are equal to the bit`);

  const metrics = await second.evaluate(await Dataset.open(test, second, { entry: 'evaluate' }));
  console.log(`accuracy ${metrics.accuracy.toFixed(3)}`);
  const inference = await (await second.model()).export();
  await inference.save(`${folder}/digits.onnx`);
  console.log(`accuracy ${(await accuracy(`${folder}/digits.onnx`, test)).toFixed(3)} of the exported model`);
}

main(process.argv.slice(2));
