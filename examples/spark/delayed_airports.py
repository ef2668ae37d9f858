"""Show the airports where planes arrived late most: Spark reads the stream examples/flights (see write_flights.py)."""

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of Spark's workers: they import tailrace, too
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tailrace.pipelines import register

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")

builder = SparkSession.builder.master("local[*]").appName("delayed airports")
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
register(spark)
flights = (
    spark.read.format("tailrace")
    .option("controller", CONTROLLER)
    .option("stream", "examples/flights")
    .option("valueFormat", "json")
    .schema("dest string, arr_delay string")
    .load()
)
delays = flights.select("dest", f.expr("try_cast(arr_delay AS double)").alias("delay")).where("delay IS NOT NULL")
airports = delays.groupBy("dest").agg(f.count("*").alias("flights"), f.round(f.avg("delay"), 1).alias("mean_delay_min"))
airports.where("flights >= 100").orderBy(f.desc("mean_delay_min"), "dest").show(10)
spark.stop()
