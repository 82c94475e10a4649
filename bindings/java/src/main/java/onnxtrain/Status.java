package onnxtrain;

/** The kind of a failure: onnx_train_status. */
public enum Status {
  OK,
  /** An argument that is wrong whatever the model holds. */
  USAGE,
  /** A file that cannot be read or written, or does not hold what it should. */
  FILE,
  /** The model, or what is asked of it. */
  UNSUPPORTED,
  /** Inputs of a run: names, types, shapes, numbers out of range. */
  DATA,
  /** Not enough memory. */
  MEMORY,
  /** A device that is not there, or failed. */
  DEVICE,
  /** A bug of the library. */
  INTERNAL
}
