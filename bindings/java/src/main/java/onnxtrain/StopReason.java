package onnxtrain;

/** Why a training has ended. */
public enum StopReason {
  FINISHED,
  INTERRUPTED,
  EARLY_STOP,
  TIME_LIMIT,
  STOPPED,
  /** The option "stop-at". */
  TARGET
}
