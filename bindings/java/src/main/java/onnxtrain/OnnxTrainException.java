package onnxtrain;

/** A call of the library failed. The message is the line that the command onnx-train prints. */
public final class OnnxTrainException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final Status status;
  private final String code;

  OnnxTrainException(int status, String message, String code) {
    super(message);
    final Status[] known = Status.values();
    this.status = status < known.length ? known[status] : Status.INTERNAL;  // one of a later version
    this.code = code;
  }

  public Status status() {
    return status;
  }

  /** "OT1001", which stays the same from version to version; "" for a failure without a code. */
  public String code() {
    return code;
  }
}
