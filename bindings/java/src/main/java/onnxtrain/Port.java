package onnxtrain;

/** An input or output of an entry point, or a state. */
public final class Port {
  public final String name;
  /** "learning_rate", "clip_norm", "loss", "accuracy", "grad_norm", ...; "" for the model's own data. */
  public final String role;
  /** The value that it belongs to; mostly "". */
  public final String of;

  public final ElementType type;
  /** -1 for a size that the model leaves open; null where not even the rank is known. */
  public final long[] shape;
  /** Whether an input may be left out. */
  public final boolean hasDefault;

  Port(String name, String role, String of, int type, long[] shape, boolean hasDefault) {
    this.name = name;
    this.role = role;
    this.of = of;
    this.type = ElementType.of(type);
    this.shape = shape;
    this.hasDefault = hasDefault;
  }

  @Override
  public String toString() {
    return name + " " + type + (shape == null ? "" : java.util.Arrays.toString(shape));
  }
}
