package onnxtrain;

/** Why a training has ended. */
public enum StopReason {
  FINISHED,
  INTERRUPTED,
  EARLY_STOP,
  TIME_LIMIT,
  STOPPED,
  /** The option "stop-at". */
  TARGET,
  /** A reason of a later version of the library. */
  OTHER;

  static StopReason of(int number) {
    return number < OTHER.ordinal() ? values()[number] : OTHER;
  }
}
