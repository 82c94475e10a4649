// What went wrong, in one line. `kind` is 'usage', 'file', 'unsupported' or 'data'.
export class OnnxTrainError extends Error {
  constructor(kind, message, options) {
    super(message, options);
    this.name = 'OnnxTrainError';
    this.kind = kind;
  }
}
