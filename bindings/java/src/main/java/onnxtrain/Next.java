package onnxtrain;

/** What a callback of a training returns. */
public enum Next {
  CONTINUE,
  /** End the training after this step, with a last evaluation. */
  STOP,
  /** End it after this step, without one: a resumed training goes on as if never stopped. */
  INTERRUPT
}
