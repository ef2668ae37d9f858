"""Settings with which jobs reach S3, and what is said before Spark starts (docs/spark-jobs.md#s3)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tailrace.cli.main import run
from tailrace.common.errors import BadRequestError, StartError
from tailrace.pipelines.s3.libraries import folder_of, locked
from tailrace.pipelines.s3.settings import is_direct, s3a_settings, settings_of_job, spark_url

LAKE = ("file:///data/in", "s3a://lake/out")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden"}
ENDPOINT = "http://127.0.0.1:9000"
PROVIDER = "spark.hadoop.fs.s3a.aws.credentials.provider"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Credentials, and a folder without libraries."""
    return CREDENTIALS | {"TAILRACE_S3_LIBRARIES": str(tmp_path / "libraries")}


@pytest.fixture
def installed(environment: dict[str, str]) -> Path:
    """The folder, with files that have the names of the libraries."""
    folder = folder_of(locked(), environment)
    folder.mkdir(parents=True)
    for each in locked():
        (folder / each.name).touch()
    return folder


def test_a_store_has_an_endpoint_and_aws_has_none() -> None:
    found = s3a_settings("https://s3.example", "")
    assert found["spark.hadoop.fs.s3a.endpoint"] == "https://s3.example"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    aws = s3a_settings("", "eu-1")
    assert aws["spark.hadoop.fs.s3a.endpoint.region"] == "eu-1"
    assert {name.rpartition("s3a.")[2] for name in found.keys() - aws.keys()} == {
        "endpoint", "path.style.access", "connection.ssl.enabled",
    }  # fmt: skip


def test_a_job_without_s3_needs_nothing() -> None:
    given = {"spark.x": "1"}
    assert settings_of_job(given, ("file:///data", "hdfs://x/y"), "local", ENDPOINT, {}) == given


def test_the_installed_libraries_are_found(environment: dict[str, str], installed: Path) -> None:
    found = settings_of_job({"spark.x": "1"}, LAKE, "local[*]", ENDPOINT, environment)
    assert found == s3a_settings(ENDPOINT, "") | {"spark.x": "1", "spark.driver.extraClassPath": f"{installed}/*"}
    assert not any("hidden" in value for value in found.values())


@pytest.mark.parametrize("master", ["local-cluster[1,1,1024]", "spark://host:7077", "yarn"])
def test_executors_elsewhere_get_them_from_the_driver(
    environment: dict[str, str], installed: Path, master: str
) -> None:
    given = {"spark.jars": "/mine.jar", "spark.driver.extraClassPath": "/classes"}
    found = settings_of_job(given, LAKE, master, "", environment)
    assert found["spark.driver.extraClassPath"] == f"/classes:{installed}/*"
    mine, *ours = found["spark.jars"].split(",")
    assert mine == "/mine.jar"
    assert ours == [(installed / each.name).as_uri() for each in locked()]


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "eu-2"}, "eu-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-2"}, "eu-2"),
        ({}, "us-east-1"),
    ],
)
def test_the_region_is_of_the_environment(
    environment: dict[str, str], installed: Path, variables: dict[str, str], region: str
) -> None:
    found = settings_of_job({}, LAKE, "local", "", environment | variables)
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == region


def test_a_given_setting_wins(environment: dict[str, str], installed: Path) -> None:
    given = {"spark.hadoop.fs.s3a.multipart.size": "8M", PROVIDER: "a.Provider"}
    environment = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    assert given.items() <= settings_of_job(given, LAKE, "local", ENDPOINT, environment).items()


def test_keys_among_the_settings_are_used(environment: dict[str, str], installed: Path) -> None:
    given = {"spark.hadoop.fs.s3a.access.key": "a", "spark.hadoop.fs.s3a.secret.key": "b"}
    environment = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    assert PROVIDER not in settings_of_job(given, LAKE, "local", ENDPOINT, environment)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"),
        ({"AWS_ACCESS_KEY_ID": "key"}, "AWS_SECRET_ACCESS_KEY is not set"),
    ],
)
def test_missing_credentials_are_named(variables: dict[str, str], text: str) -> None:
    with pytest.raises(StartError, match=f"s3a:// needs credentials: {text}"):
        settings_of_job({}, LAKE, "local", ENDPOINT, variables)


def test_a_library_that_is_missing_names_the_command(environment: dict[str, str], installed: Path) -> None:
    (installed / locked()[-1].name).unlink()
    with pytest.raises(StartError, match=r"run tailrace pipeline install-s3$"):
        settings_of_job({}, LAKE, "local", ENDPOINT, environment)


def test_a_connector_of_the_user_or_of_spark_is_enough(environment: dict[str, str], tmp_path: Path) -> None:
    own = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}
    assert settings_of_job(own, LAKE, "yarn", ENDPOINT, environment) == s3a_settings(ENDPOINT, "") | own
    (tmp_path / "spark/jars").mkdir(parents=True)
    home = environment | {"SPARK_HOME": str(tmp_path / "spark")}
    with pytest.raises(StartError, match="install-s3"):
        settings_of_job({}, LAKE, "yarn", ENDPOINT, home)
    (tmp_path / "spark/jars/hadoop-aws-3.5.0.jar").touch()
    assert settings_of_job({}, LAKE, "yarn", ENDPOINT, home) == s3a_settings(ENDPOINT, "")


def test_what_spark_submit_has_started_keeps_its_settings() -> None:
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    assert settings_of_job({"spark.x": "1"}, LAKE, "local", "", submitted) == {"spark.x": "1"}
    found = settings_of_job({}, LAKE, "local", ENDPOINT, submitted)
    assert found["spark.hadoop.fs.s3a.endpoint"] == ENDPOINT
    assert "spark.hadoop.fs.s3a.endpoint.region" not in found


@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "127.0.0.1:9000", "http://", "s3://lake", "http://minio:port", "http://:9000"]
)
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(BadRequestError, match=f"--s3-endpoint '{endpoint}' is not of the form"):
        settings_of_job({}, (), "local", endpoint, {})


def test_credentials_in_addresses_are_refused_and_not_shown() -> None:
    with pytest.raises(BadRequestError, match="do not belong into the address") as refused:
        settings_of_job({}, (), "local", "http://key:hidden@store:9000", {})
    assert "hidden" not in str(refused.value)
    with pytest.raises(BadRequestError, match="do not belong into an s3a:// URL") as refused:
        spark_url("s3a://key:hidden@lake/out")
    assert "hidden" not in str(refused.value)


def test_a_url_of_s3_is_one_of_s3a() -> None:
    assert spark_url("s3://lake/a/*.parquet") == spark_url("s3a://lake/a/*.parquet") == "s3a://lake/a/*.parquet"
    assert spark_url("hdfs://host/a@b") == "hdfs://host/a@b"
    assert spark_url("s3://lake/a@b") == "s3a://lake/a@b"
    with pytest.raises(BadRequestError, match=r"'s3:///a' has no bucket"):
        spark_url("s3:///a")


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "a/b", "s3://lake/out"],
        ["aggregate", "a/b", "s3a://lake/out", "--schema=n long", "--time-field=n", "--window=1 day"],
        ["replay", "a/b", "a/c", "--checkpoint=s3a://lake/c"],
        ["backfill", "s3a://lake/in", "a/b", "--checkpoint=/none"],
        ["backfill", "/none", "a/b", "--checkpoint=s3a://lake/c"],
        ["audit", "/none", "s3a://lake/audits", "--no-page"],
    ],
)
def test_each_job_says_what_to_install_before_anything_else(
    arguments: list[str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No server is asked, and no Java started: neither is there."""
    monkeypatch.setenv("JAVA_HOME", "/none")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = run(["--controller", "tcp://127.0.0.1:1", "pipeline", *arguments])
    folder = folder_of(locked(), environment)
    expected = f"tailrace: s3a:// needs libraries that are not in {folder}: run tailrace pipeline install-s3\n"
    assert (code, capfd.readouterr().err) == (1, expected)


def test_an_endpoint_where_nothing_listens_is_named_at_once(
    environment: dict[str, str],
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark would try again for many minutes. Through a proxy it may be there."""
    monkeypatch.setenv("JAVA_HOME", "/none")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as bound:  # and it does not listen
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        code = run(["pipeline", "archive", "a/b", "s3a://lake/out", "--s3-endpoint", endpoint])
    expected = f"tailrace: the object store at {endpoint} cannot be reached: Connection refused\n"
    assert (code, capfd.readouterr().err) == (1, expected)


def test_a_store_behind_a_proxy_is_left_to_spark(environment: dict[str, str], installed: Path) -> None:
    assert is_direct(settings_of_job({}, LAKE, "local", ENDPOINT, environment), ENDPOINT)
    behind = {"spark.hadoop.fs.s3a.proxy.host": "proxy"}
    assert not is_direct(settings_of_job(behind, LAKE, "local", ENDPOINT, environment), ENDPOINT)
    assert not is_direct(settings_of_job({}, ("file:///out",), "local", ENDPOINT, environment), ENDPOINT)
