package onnxtrain;

/** What a callback of a training, or of texts that are written, returns. */
public enum Next {
  CONTINUE(0),
  /** End the training after this step, with a last evaluation. */
  STOP(1),
  /** End it after this step, without one: a resumed training goes on as if never stopped. */
  INTERRUPT(2),
  /** Of Session.generate: this text is complete, and the others go on. In a training it is CONTINUE. */
  END_TEXT(4);

  final int number;

  Next(int number) {
    this.number = number;
  }
}
