# Prints a manifest without the objects that make undeploy keeps:
#  1. the definitions, and with them all objects of their kinds;
#  2. the claim with the journal, from which Turns continue after the manager is installed again;
#  3. the Namespace, because its deletion would delete the claim.
BEGIN { RS = "---\n"; ORS = "---\n" }
!/(^|\n)kind: (CustomResourceDefinition|PersistentVolumeClaim|Namespace)\n/
