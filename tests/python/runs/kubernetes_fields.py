"""Fields of the kinds in examples/kubernetes, as far as these use them.

From the definitions of kubeflow/trainer (8c0f5059, 2026-08-21: manifests/base/crds), of kubeflow/mpi-operator (caa3c47f, 2026-07-03:
manifests/base/kubeflow.org_mpijobs.yaml), and of Kubernetes' own API v1. A mapping has those keys and no others; [x] is a list
of x; a tuple holds what a word may be; {str: x} is a mapping of any names.
"""

NAMES = {str: str}
META = {"name": str, "labels": NAMES}
RESOURCES = {"requests": NAMES, "limits": NAMES}
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str], "resources": RESOURCES,
    "env": [{"name": str, "value": str}], "volumeMounts": [{"name": str, "mountPath": str}],
    "readinessProbe": {"tcpSocket": {"port": int}, "initialDelaySeconds": int},
    "securityContext": {"runAsUser": int, "allowPrivilegeEscalation": bool, "capabilities": {"drop": [str]}},
}  # fmt: skip
POD = {
    "containers": [CONTAINER], "terminationGracePeriodSeconds": int,
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "fsGroup": int},
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
}  # fmt: skip
JOB = {"metadata": {"labels": NAMES}, "spec": {"backoffLimit": int, "template": {"metadata": {"labels": NAMES}, "spec": POD}}}
REPLICATED = {"name": str, "dependsOn": [{"name": str, "status": ("Ready", "Complete")}], "template": JOB}
JOB_SET = {
    "network": {"publishNotReadyAddresses": bool}, "failurePolicy": {"maxRestarts": int},
    "successPolicy": {"operator": ("All", "Any"), "targetReplicatedJobs": [str]}, "replicatedJobs": [REPLICATED],
}  # fmt: skip
MPI = {"numProcPerNode": int, "mpiImplementation": ("OpenMPI",), "sshAuthMountPath": str, "runLauncherAsNode": bool}
RUNTIME = {"mlPolicy": {"numNodes": int, "torch": {}, "mpi": MPI}, "template": {"spec": JOB_SET}}
TRAIN_JOB = {
    "runtimeRef": {"apiGroup": ("trainer.kubeflow.org",), "kind": ("TrainingRuntime", "ClusterTrainingRuntime"), "name": str},
    "trainer": {"image": str, "command": [str], "args": [str], "env": [{"name": str, "value": str}], "numNodes": int,
                "numProcPerNode": int, "resourcesPerNode": RESOURCES},
}  # fmt: skip
REPLICA = {"replicas": int, "restartPolicy": ("Never", "OnFailure"), "template": {"spec": POD}}
MPI_JOB = {
    "slotsPerWorker": int, "mpiImplementation": ("OpenMPI", "Intel", "MPICH"), "sshAuthMountPath": str,
    "runPolicy": {"cleanPodPolicy": ("None", "Running", "All"), "backoffLimit": int},
    "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA},
}  # fmt: skip
SELECTOR = {"matchLabels": NAMES}
POLICY = {"podSelector": SELECTOR, "policyTypes": [("Ingress", "Egress")], "ingress": [{"from": [{"podSelector": SELECTOR}]}]}
CLAIM = {"accessModes": [("ReadWriteMany", "ReadWriteOnce")], "resources": RESOURCES}

SPECS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): RUNTIME,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): TRAIN_JOB,
    ("kubeflow.org/v2beta1", "MPIJob"): MPI_JOB,
    ("networking.k8s.io/v1", "NetworkPolicy"): POLICY,
    ("v1", "PersistentVolumeClaim"): CLAIM,
}


def wrong(value, field, path):
    """What of a value does not fit a field: lines of text."""
    if isinstance(field, dict):
        if not isinstance(value, dict):
            return [f"{path}: a mapping is expected"]
        if str in field:
            field = dict.fromkeys(value, field[str])
        unknown = [f"{path}.{key}: no such field" for key in value if key not in field]
        return unknown + [line for key in value if key in field for line in wrong(value[key], field[key], f"{path}.{key}")]
    if isinstance(field, list):
        if not isinstance(value, list):
            return [f"{path}: a list is expected"]
        return [line for at, item in enumerate(value) for line in wrong(item, field[0], f"{path}[{at}]")]
    if isinstance(field, tuple):
        return [] if value in field else [f"{path}: {value!r} is none of {field}"]
    return [] if type(value) is field else [f"{path}: {value!r} is no {field.__name__}"]
