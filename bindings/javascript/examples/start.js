// The program of the page about languages: node start.js MODEL.onnx TRAIN.npz TRAINED.onnx
'use strict';
const { Dataset, Model, Session } = require('..');

async function main([path, train, trained]) {
  const forward = await Model.load(path);
  const training = await forward.build({ loss: 'cross_entropy', optimizer: 'adamw' });
  const session = await Session.create(training);
  const data = await Dataset.open(train, session);
  const onStep = ({ loss }) => (loss < 0.1 ? 'stop' : 'continue');
  await session.fit(data, { epochs: 4, lr: 0.003 }, { onStep });
  const inference = await (await session.model()).export();
  await inference.save(trained);
}

main(process.argv.slice(2));
