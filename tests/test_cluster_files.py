"""The files for clusters: each is what its own checker takes, and says what this program's commands take."""

import itertools
import shutil
import subprocess

import pytest
import yaml

from fault_injection.commands.main import parser

pytestmark = pytest.mark.slow  # the checkers are not in the environment of the quick tests


@pytest.fixture(scope="module")
def objects(repository):
    """Those of the file for Kubernetes."""
    return list(yaml.safe_load_all((repository / "docs" / "cluster" / "kubernetes.yaml").read_text()))


def test_kubernetes_takes_the_file(objects):
    validate = pytest.importorskip("kubernetes_validate").validate
    assert [one["kind"] for one in objects] == ["PersistentVolumeClaim", "Service", *["Deployment"] * 2, "Job"]
    for one in objects:
        validate(one, "1.30", strict=True)
        with pytest.raises(Exception, match=r"unknown|not allowed|unexpected"):
            validate({**one, "unknown": 1}, "1.30", strict=True)


def test_what_it_starts_finds_what_it_names(objects):
    """Containers mount volumes that there are, labels fit, and the campaign is a command of this program."""
    (claim,) = (one["metadata"]["name"] for one in objects if one["kind"] == "PersistentVolumeClaim")
    (service,) = (one for one in objects if one["kind"] == "Service")
    labels = []
    for one in objects:
        if one["kind"] not in ("Deployment", "Job"):
            continue
        template = one["spec"]["template"]
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        if one["kind"] == "Deployment":
            labels.append(template["metadata"]["labels"])
            assert one["spec"]["selector"]["matchLabels"] == labels[-1]
    assert service["spec"]["selector"] in labels
    (job,) = (one for one in objects if one["kind"] == "Job")
    program, *words = job["spec"]["template"]["spec"]["containers"][0]["command"]
    options = parser(program, words).parse_args(words)
    assert options.scheduler == f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_the_script_for_slurm_is_sound(repository):
    script = repository / "docs" / "cluster" / "slurm.sh"
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    words = next(line for line in script.read_text().splitlines() if line.startswith("exec ")).split()[2:]
    options = parser("fault-injection", words).parse_args([word.strip('"') for word in words])
    assert options.scheduler == "$address"
    comments = list(itertools.takewhile(lambda line: line.startswith("#"), script.read_text().splitlines()))
    assert any("sbatch" in line for line in comments)
