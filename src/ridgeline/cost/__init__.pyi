"""Names that the room of prices offers, beside its side doors for one purpose each."""

from ridgeline.cost.calibration import PARAMETERS as PARAMETERS
from ridgeline.cost.calibration import SERVING_PARAMETERS as SERVING_PARAMETERS
from ridgeline.cost.calibration import Calibration as Calibration
from ridgeline.cost.calibration import Owners as Owners
from ridgeline.cost.calibration import ServingCalibration as ServingCalibration
from ridgeline.cost.calibration import default_calibration as default_calibration
from ridgeline.cost.calibration import owners as owners
from ridgeline.cost.calibration import serving_spread as serving_spread
from ridgeline.cost.calibration import shipped_serving as shipped_serving
from ridgeline.cost.profile import FORMATS as FORMATS
from ridgeline.cost.profile import Choice as Choice
from ridgeline.cost.profile import Profile as Profile
from ridgeline.cost.profile import is_profile as is_profile
from ridgeline.cost.profile import profile_for as profile_for
from ridgeline.cost.profile import read_profile as read_profile
from ridgeline.cost.profile import refuse_stored as refuse_stored
from ridgeline.cost.profile import save_fingerprint as save_fingerprint
from ridgeline.cost.profile import shipped_profiles as shipped_profiles
from ridgeline.cost.profile_compare import ProfileDiff as ProfileDiff
from ridgeline.cost.profile_compare import ProfileReport as ProfileReport
from ridgeline.cost.profile_compare import diff_profiles as diff_profiles
from ridgeline.cost.profile_compare import merge_profiles as merge_profiles
from ridgeline.cost.profile_compare import profile_report as profile_report
