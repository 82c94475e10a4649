package onnxtrain;

/** Called with each token that is drawn and the number of its text. */
@FunctionalInterface
public interface OnToken {
  /** Returns CONTINUE; END_TEXT, which completes this text; or STOP, which ends all. */
  Next drawn(int text, long token);
}
