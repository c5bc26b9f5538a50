"""The machine as numbers: what a device computes and remembers, what a link carries.

`cluster` says what a machine is made of and keeps it in files, `gpus` and `tpus` are the figures,
`catalogue` their names, `description` prints which mesh axis runs over which link. Rates are peaks
of the vendor unless a comment says otherwise; a plan priced with them is a ranking, not a forecast.
`scripts/calibrate.py` measures the machine at hand instead.
"""

from sbp.hardware.catalogue import BY_NAME as BY_NAME
from sbp.hardware.catalogue import CPU as CPU
from sbp.hardware.catalogue import as_cluster as as_cluster
from sbp.hardware.catalogue import cluster_of_device as cluster_of_device
from sbp.hardware.cluster import Cluster as Cluster
from sbp.hardware.cluster import Device as Device
from sbp.hardware.cluster import Link as Link
from sbp.hardware.cluster import Place as Place
from sbp.hardware.description import describe as describe
from sbp.hardware.gpus import A100_40GB_NODE as A100_40GB_NODE
from sbp.hardware.gpus import A100_ETHERNET as A100_ETHERNET
from sbp.hardware.gpus import A100_NODE as A100_NODE
from sbp.hardware.gpus import A100_SXM as A100_SXM
from sbp.hardware.gpus import B200_NODE as B200_NODE
from sbp.hardware.gpus import B200_SXM as B200_SXM
from sbp.hardware.gpus import H100_NODE as H100_NODE
from sbp.hardware.gpus import H100_SXM as H100_SXM
from sbp.hardware.gpus import H200_NODE as H200_NODE
from sbp.hardware.gpus import H200_SXM as H200_SXM
from sbp.hardware.tpus import TPU_V5E as TPU_V5E
from sbp.hardware.tpus import TPU_V5E_POD as TPU_V5E_POD
from sbp.hardware.tpus import TPU_V5P as TPU_V5P
from sbp.hardware.tpus import TPU_V5P_POD as TPU_V5P_POD
