package onnxtrain;

/** What a run of an entry point executes. */
public final class Plan {
  /** What the command onnx-train show --plan prints. */
  public final String text;
  /** The same as an array with an object a node. */
  public final String json;
  /** Bytes of gradients and activations at their peak, workspace included. */
  public final long arenaBytes;

  public final long workspaceBytes;
  public final long constantBytes;

  Plan(String text, String json, long arenaBytes, long workspaceBytes, long constantBytes) {
    this.text = text;
    this.json = json;
    this.arenaBytes = arenaBytes;
    this.workspaceBytes = workspaceBytes;
    this.constantBytes = constantBytes;
  }
}
