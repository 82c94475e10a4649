package onnxtrain;

import java.util.Arrays;
import java.util.Iterator;

/** The outputs of a run, in the session's memory: valid until the next call with the session. */
public final class Outputs implements Iterable<Tensor> {
  private final Tensor[] tensors;
  private final Port[] ports;

  Outputs(Tensor[] tensors, Port[] ports) {
    this.tensors = tensors;
    this.ports = ports;
  }

  public int size() {
    return tensors.length;
  }

  @Override
  public Iterator<Tensor> iterator() {
    return Arrays.asList(tensors).iterator();
  }

  /** The output of this name or, if there is none, of this role: "loss" is the loss whatever the file calls it. */
  public Tensor get(String name) {
    final Tensor named = find(name);
    if (named != null) return named;
    for (Port port : ports) {
      if (port.role.equals(name) && find(port.name) != null) return find(port.name);
    }
    throw new IllegalArgumentException("the run has no output '" + name + "'");
  }

  /** The first element of an output of floats. */
  public float scalar(String name) {
    return get(name).floats().get(0);
  }

  private Tensor find(String name) {
    for (Tensor tensor : tensors) {
      if (tensor.name().equals(name)) return tensor;
    }
    return null;
  }
}
